"""Full attention of several positions at a time, given the cache of those before them."""

import tensorflow as tf

from rt_keras.ops.attend import attend
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.decode import check_position, with_bias, without_bias


def full_piece(
    query,
    key,
    value,
    cache,
    position,
    *,
    token_bias=None,
    relative_embeddings=None,
    activation="softmax",
):
    """Causal `full_attention` of the positions of a piece, given those before it.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `full_cache`, `full_step` or of the last piece, with room for this one.
        position: int scalar, the piece's first position.
        token_bias: `[batch, length]`, of the keys; or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        activation: see `full_attention`.

    Returns:
        `[batch, heads, length, value_depth]`, and the cache with these positions in it.

    >>> from rt_keras.ops.full_decode import full_cache
    >>> x = tf.random.normal([1, 2, 9, 4])
    >>> cache = full_cache(x[:, :, :4], x[:, :, :4], max_length=9)
    >>> rest = x[:, :, 4:]
    >>> output, cache = full_piece(rest, rest, rest, cache, 4)
    >>> output.shape
    TensorShape([1, 2, 5, 4])
    """
    length, room, heads = size(query, 2), size(cache["key"], 2), query.shape[1]
    check_position(position + length - 1, room)
    places = tf.range(room)
    place = places - position
    is_new = ((place >= 0) & (place < length))[:, None]

    def put(kept, new):
        new = tf.gather(tf.cast(new, kept.dtype), tf.clip_by_value(place, 0, length - 1), axis=2)
        return tf.where(is_new, new, kept)

    cache = {
        "key": put(cache["key"], with_bias(key, token_bias)),
        "value": put(cache["value"], value),
    }
    keys, bias = without_bias(repeat_heads(cache["key"], heads), query.shape[3])
    bias = None if bias is None else bias[:, None, None]
    own = position + tf.range(length)
    query *= query.shape[3] ** -0.5
    if relative_embeddings is not None:
        relative = _relative(query, relative_embeddings, own[:, None] - places)
        bias = relative if bias is None else bias + relative
    values, seen = repeat_heads(cache["value"], heads), places <= own[:, None]
    return attend(query, keys, values, seen, bias=bias, activation=activation)[0], cache


def _relative(query, embeddings, distances):
    """Relative logits at distances `[queries, keys]` that are the same for all heads."""
    far = embeddings.shape[1] // 2
    rows = tf.clip_by_value(distances, -far, far) + far
    products = tf.einsum("bhqd,hrd->qbhr", query, tf.cast(embeddings, query.dtype))
    return tf.transpose(tf.gather(products, rows, axis=3, batch_dims=1), [1, 2, 0, 3])
