"""Local and routed attention of several positions at a time, given the cache of those before."""

import tensorflow as tf

from rt_keras.ops.attend import merge_pair
from rt_keras.ops.blocks import places_of_rows, size, take_places
from rt_keras.ops.convolution import causal_convolution
from rt_keras.ops.local_piece import local_piece
from rt_keras.ops.nearest_piece import nearest_piece


def local_routing_piece(
    query,
    key,
    value,
    cache,
    position,
    centroids,
    *,
    block_size,
    look_back=1,
    num_probes=1,
    load_bias=None,
    routed_scale=None,
    routed_bias=None,
    routed_kernel=None,
    count=None,
    relative_embeddings=None,
    normalize=True,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Causal `local_routing_attention` with `shift_keys` of a piece, given what came before it.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `local_routing_cache`, with `shift_keys`, of `local_routing_step` or of
            the last piece.
        position: int scalar, the piece's first position; or int `[batch]`, that of each row.
        centroids: `[key_heads, clusters, depth]`.
        block_size, look_back, num_probes, load_bias, routed_scale, routed_bias, routed_kernel,
            relative_embeddings, normalize, dropout, seed: see `local_routing_attention`.
        count: int scalar or `[batch]`, how many of the piece's positions count, the first ones;
            others are padding, whose outputs mean nothing. None, the default, for all.
        return_logsumexp: bool, whether to return the logsumexp of the logits too. Defaults to
            False.

    Returns:
        `[batch, heads, length, value_depth]`, or the pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions in it.

    >>> from rt_keras.ops.local_routing_decode import local_routing_cache
    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> sizes = {"block_size": 8, "window_size": 6, "shift_keys": True}
    >>> cache = local_routing_cache(x, x, x, centroids, 30, **sizes)
    >>> rest = x[:, :, 30:]
    >>> output, cache = local_routing_piece(rest, rest, rest, cache, 30, centroids, block_size=8)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    kept = {}
    seeds = [None, None] if seed is None else tf.unstack(tf.random.split(seed, 2))
    near, local = local_piece(
        query,
        key,
        value,
        cache["local"],
        position,
        block_size=block_size,
        look_back=look_back,
        count=count,
        relative_embeddings=relative_embeddings,
        dropout=dropout,
        seed=seeds[0],
        return_logsumexp=True,
    )
    if routed_kernel is not None:
        before = tf.cast(cache["queries"], query.dtype)
        of_last = places_of_rows(
            size(query, 2) if count is None else count, tf.range(size(before, 2))
        )
        last = take_places(tf.concat([before, query], axis=2), of_last)
        kept["queries"] = tf.cast(last, cache["queries"].dtype)
        query = causal_convolution(query, routed_kernel, before=before)
    far, routed = nearest_piece(
        query,
        None,
        value,
        cache["routed"],
        position,
        centroids,
        num_probes=num_probes,
        load_bias=load_bias,
        count=count,
        scale=routed_scale,
        normalize=normalize,
        dropout=dropout,
        seed=seeds[1],
        return_logsumexp=True,
    )
    output = merge_pair(near, far, bias=routed_bias, return_logsumexp=return_logsumexp)
    return output, {**kept, "local": local, "routed": routed}
