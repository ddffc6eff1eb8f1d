"""Attention to the first tokens of a sequence, the attention sinks, from any position."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import attend_folded, without_padding
from rt_keras.ops.blocks import pad_axis, places_of_rows, repeat_rows, size, take_places
from rt_keras.ops.caches import pad_to, write_chunk
from rt_keras.ops.left_padding import leading_padding
from rt_keras.ops.naive import naive_attention, naive_mask


def naive_first_tokens_attention(
    query, key, value, *, num_first_tokens, outside=(), key_mask=None, **masks
):
    """Computes `first_tokens_attention` by its equation, in NumPy; see `naive_mask`."""
    length = query.shape[2]
    i, j = np.arange(length)[:, None], np.arange(length)
    start = 0 if key_mask is None else np.argmax(key_mask, axis=1)[:, None, None, None]
    allowed = naive_mask(length, length, key_mask=key_mask, **masks)
    allowed = allowed & (j >= start) & (j < start + num_first_tokens)
    for covers in outside:
        allowed = allowed & ~covers(i, j)
    return naive_attention(query, key, value, allowed)


def first_tokens_attention(
    query,
    key,
    value,
    *,
    num_first_tokens,
    outside=(),
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Attention of each query to the first tokens of its sequence.

    ```
    output_i = sum_(j < num_first_tokens) softmax_j(query_i · key_j / sqrt(depth)) value_j
    ```

    over the j <= i if causal. Models trained with full attention give the first tokens the weight
    that no other key needs, and fail without them. `merge` combines the output with attention to
    other keys. The cost is O(n · num_first_tokens).

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        num_first_tokens: int, number of first tokens, after the padding at the start of a row.
        outside: tuple of functions of the positions of queries and keys, broadcast against each
            other. Each returns a bool mask of keys to leave out because another set of keys has
            them. Defaults to ().
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which no query sees; or None.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp of the logits,
        `[batch, heads, length]`. A query that may see no key gets 0.

    Source: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks, section 3.2.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> first_tokens_attention(x, x, x, num_first_tokens=3, causal=True)[0].shape
    TensorShape([1, 2, 10, 4])
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    places = tf.range(num_first_tokens)[None]  # [batch or 1, num_first_tokens]
    if key_mask is None:
        keys = first_tokens_cache(key, value, num_first_tokens=num_first_tokens)
        real = places < size(key, 2)
    else:
        places += leading_padding(key_mask)[:, None]
        keys = {
            name: take_places(pad_axis(x, 2, 0, num_first_tokens), places)
            for name, x in (("key", key), ("value", value))
        }
        mask = pad_axis(tf.cast(key_mask, tf.bool), 1, 0, num_first_tokens)
        real = tf.gather(mask, places, batch_dims=1)
    positions = tf.range(size(query, 2))[None]
    allowed = _allowed(positions, places, real, causal, outside)
    return without_padding(*_attend(query, keys, allowed, dropout, seed), query_mask)


def first_tokens_cache(key, value, *, num_first_tokens):
    """Builds the cache of `first_tokens_chunk`: the keys and values of the first tokens.

    Args:
        key: `[batch, key_heads, length, depth]`, from the first position.
        value: `[batch, key_heads, length, value_depth]`.
        num_first_tokens: int, number of first tokens.

    Returns:
        A dictionary of "key" and "value", `[batch, key_heads, num_first_tokens, ...]`.
    """
    return {"key": pad_to(key, num_first_tokens), "value": pad_to(value, num_first_tokens)}


def first_tokens_chunk(
    query, key, value, cache, position, *, count=None, outside=(), dropout=0.0, seed=None
):
    """Computes causal `first_tokens_attention` of a chunk, given the cache of earlier positions.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `first_tokens_cache` or of the last chunk.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        outside, dropout, seed: see `first_tokens_attention`.

    Returns:
        A pair of `[batch, heads, length, value_depth]` and the logsumexp of the logits,
        `[batch, heads, length]`; and the cache with these positions added.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = first_tokens_cache(x[:, :, :1], x[:, :, :1], num_first_tokens=3)
    >>> rest = x[:, :, 1:]
    >>> (output, _), cache = first_tokens_chunk(rest, rest, rest, cache, 1)
    >>> output.shape, cache["key"].shape
    (TensorShape([1, 2, 4, 4]), TensorShape([1, 2, 3, 4]))
    """
    cache = write_chunk(cache, position, count, key=key, value=value)
    positions = places_of_rows(position, tf.range(size(query, 2)))
    places = tf.range(size(cache["key"], 2))[None]
    allowed = _allowed(positions, places, tf.ones_like(places, tf.bool), True, outside)
    return _attend(query, cache, allowed, dropout, seed), cache


def _allowed(positions, places, real, causal, outside):
    """Returns which first tokens queries see, bool `[batch or 1, length, num_first_tokens]`."""
    positions, places = positions[:, :, None], places[:, None]
    allowed = real[:, None] & (places <= positions if causal else positions >= 0)
    for covers in outside:
        allowed &= ~covers(positions, places)
    return allowed


def _attend(query, keys, allowed, dropout, seed):
    """Attends to "key" and "value" of the first tokens, `[batch, key_heads, tokens, ...]`."""
    heads, key_heads = query.shape[1], keys["key"].shape[1]
    # The query heads of one key head become more queries of it.
    allowed = repeat_rows(allowed[:, None], heads // key_heads)
    key, value = (tf.cast(keys[name], query.dtype) for name in ("key", "value"))
    query = query * query.shape[3] ** -0.5
    return attend_folded(query, key, value, allowed, dropout=dropout, seed=seed)
