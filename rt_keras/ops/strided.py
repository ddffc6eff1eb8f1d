"""Strided attention: every query attends to the keys at multiples of a stride from it."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import (
    StepKeys,
    accumulation_dtype,
    attend,
    attend_step,
    without_padding,
)
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    larger,
    move_axis,
    of_one_length,
    places_of_rows,
    real_positions,
    repeat_heads,
    size,
    split_blocks,
    take_places,
)
from rt_keras.ops.caches import check_position, from_rows, write
from rt_keras.ops.full import full_cache
from rt_keras.ops.naive import naive_attention, naive_mask
from rt_keras.ops.relative import window_bias
from rt_keras.ops.slices import HeadInputs, over_heads


def naive_strided_attention(
    query, key, value, *, stride, outside=None, relative_embeddings=None, **masks
):
    """Computes `strided_attention` by its equation, in NumPy. `masks` are those of `naive_mask`."""
    key = query if key is None else key
    i, j = np.arange(query.shape[2])[:, None], np.arange(key.shape[2])
    allowed = naive_mask(len(i), len(j), **masks) & ((i - j) % stride == 0)
    if outside is not None:
        allowed = allowed & ~outside(i, j)
    return naive_attention(query, key, value, allowed, relative_embeddings, (i - j) // stride)


def strided_attention(
    query,
    key,
    value,
    *,
    stride,
    outside=None,
    causal=False,
    query_mask=None,
    key_mask=None,
    documents=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Computes attention of each query to the keys at multiples of `stride` from it.

    ```
    output_i = sum_(j ≡ i mod stride) p_ij value_j
    p_ij = softmax_j(query_i · (key_j + r_ij) / sqrt(depth))
    ```

    over the j <= i if causal. The cost is O(n² / stride), which is O(n^1.5) for a stride of
    sqrt(n). In the order of `rt_keras.ops.to_blocks`, with the size of a block as stride, the keys
    are the positions at the same index in every block of an image.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`, or None for the queries themselves. Each key head
            serves heads / key_heads consecutive query heads.
        value: `[batch, key_heads, length, value_depth]`.
        stride: int, positions from one key to the next.
        outside: function of the positions of queries and keys, broadcast against each other, which
            returns a bool mask of keys to leave out because another set of keys has them; or None.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which no query sees; or None.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, which do
            not see one another; or None. Only without `outside`.
        relative_embeddings: `[heads, 2 m + 1, depth]`, of r_ij, which depends on
            (i - j) / stride, clipped to ±m. None for no relative positions.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        return_logsumexp: bool, whether to also return the logsumexp of each query's logits, which
            `merge` needs to combine the output with attention to other keys. Defaults to False.

    Returns:
        `[batch, heads, length, value_depth]`. A query that may see no key gets 0. With
        `return_logsumexp` also the logsumexp `[batch, heads, length]`, float32 (float64 for
        float64 queries).

    Raises:
        ValueError: if queries and keys differ in length.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, section 4.3,
    the head A^(2) of strided attention.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> strided_attention(x, x, x, stride=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    key = query if key is None else key
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    query, value = of_one_length(query, value, "Strided attention needs as many keys as queries.")
    heads, length = query.shape[1], size(query, 2)
    query *= query.shape[-1] ** -0.5
    results = over_heads(
        lambda inputs: _attend_columns(HeadInputs(**inputs), stride, causal, outside, dropout),
        {"query": query, "key": repeat_heads(key, heads), "value": repeat_heads(value, heads)},
        {"relative_embeddings": relative_embeddings},
        {"key_mask": key_mask, "documents": documents, "seed": seed},
        size(query, 0) * heads * length * ceil_div(length, stride),
        (value.dtype, accumulation_dtype(query.dtype)),
    )
    output, logsumexp = without_padding(*results, query_mask)
    return (output, logsumexp) if return_logsumexp else output


def _attend_columns(inputs, stride, causal, outside, dropout):
    """Computes `strided_attention` of some heads: attention inside each column."""
    length, bias, seed = size(inputs.query, 2), None, inputs.seed
    query, key, value = (columns(x, stride) for x in (inputs.query, inputs.key, inputs.value))
    steps = size(query, 3)
    # [batch or 1, 1, stride, 1, keys]; a column has `steps` keys. Masks are separate; see `attend`.
    real = real_positions(length, inputs.key_mask)[:, None]
    allowed = (columns(real, stride)[..., None, :],)
    if causal:
        allowed += (tf.range(steps) <= tf.range(steps)[:, None],)
    if inputs.documents is not None:
        documents = columns(inputs.documents[:, None], stride)
        allowed += (documents[..., None, :] == documents[..., None],)
    if outside is not None:
        places = tf.range(steps) * stride + tf.range(stride)[:, None]  # [stride, steps]
        allowed += (~outside(places[:, :, None], places[:, None]),)
    if inputs.relative_embeddings is not None:
        bias = window_bias(query, inputs.relative_embeddings, steps, 0, causal)
    output, logsumexp = attend(query, key, value, allowed, bias=bias, dropout=dropout, seed=seed)
    return from_columns(output, length), from_columns(logsumexp, length)


def columns(x, stride):
    """Splits `[batch, heads, length, ...]` to `[batch, heads, stride, steps, ...]`, zero-padded."""
    # At least one step, as relative positions need.
    return move_axis(split_blocks(x, larger(ceil_div(size(x, 2), stride), 1), stride), 2, 3)


def from_columns(x, length):
    """Inverts `columns`."""
    return join_blocks(move_axis(x, 2, 3), length)


def strided_cache(key, value, *, stride, max_length):
    """Builds the cache of `strided_step`: the keys and values of all positions.

    Args:
        key: `[batch, heads, length, depth]`, from the first position.
        value: `[batch, heads, length, value_depth]`.
        stride: int, positions from one key to the next.
        max_length: int, maximum length of the sequence.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`, where places is
        `max_length` rounded up to a multiple of `stride`.
    """
    length = ceil_div(max_length, stride) * stride
    return full_cache(key, value, max_length=length)


def strided_step(
    query,
    key,
    value,
    cache,
    position,
    *,
    stride,
    outside=None,
    count=None,
    relative_embeddings=None,
    return_logsumexp=False,
):
    """Computes causal `strided_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `strided_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        stride: int, positions from one key to the next.
        outside: see `strided_attention`; or None.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.

    Returns:
        `[batch, heads, 1, value_depth]`, or a pair of it and the logsumexp `[batch, heads, 1]`; and
        the cache with this position added.

    Raises:
        ValueError: if the position is known to be outside of the cache.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = strided_cache(x[:, :, :4], x[:, :, :4], stride=2, max_length=9)
    >>> last = x[:, :, 4:]
    >>> output, cache = strided_step(last, last, last, cache, 4, stride=2)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    check_position(position, size(cache["key"], 2), count)
    cache = write(cache, places_of_rows(position, 0), count, key=key, value=value)
    keys = keys_in_column(cache, position, stride)
    if outside is not None:
        query_position = from_rows(position, 0)
        key_positions = query_position - stride * keys.distance
        covered = outside(query_position, key_positions)[..., None, :]
        keys = keys._replace(allowed=keys.allowed & ~covered)
    options = {"relative_embeddings": relative_embeddings, "return_logsumexp": return_logsumexp}
    return attend_step(query, *keys, **options), cache


def keys_in_column(cache, position, stride):
    """Returns the `StepKeys` of a causal query at `position`."""
    first = tf.range(0, size(cache["key"], 2), stride)
    places = places_of_rows(position % stride, first)  # [batch or 1, steps]
    key, value = take_places(cache["key"], places), take_places(cache["value"], places)
    distance = from_rows(position // stride, -first // stride)  # [steps] or [batch, 1, steps]
    return StepKeys(key, value, distance[..., None, :] >= 0, distance)
