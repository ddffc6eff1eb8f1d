"""Causal clustered attention: exact inside a block, and through centroids before it."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, attend_step, merge, merge_sets
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    of_one_length,
    pad_axis,
    places_of_rows,
    real_positions,
    size,
    split_blocks,
)
from rt_keras.ops.caches import like, where_counted
from rt_keras.ops.local.cached import add_position, keys_in_view, local_cache
from rt_keras.ops.local.neighborhood import Neighborhood
from rt_keras.ops.naive import (
    naive_logits,
    naive_mask,
    naive_normalize,
    naive_shared,
    naive_softmax,
)
from rt_keras.ops.nearest.assign import nearest_centroid, normalize, prepare
from rt_keras.ops.nearest.attention import naive_clusters
from rt_keras.ops.slices import HeadInputs, over_heads

# Maximum number of blocks merged pair by pair; more are merged in runs of this many.
RUN_SIZE = 32
# What the cache holds of the attention of centroids.
NAMES = ("output", "logsumexp")


def naive_causal_clustered_attention(
    query, key, value, centroids, *, block_size, load_bias=None, **masks
):
    """The equation of `causal_clustered_attention`: to other blocks, centroids are the queries."""
    key, masks = naive_shared(query, key, **masks)
    heads, length = query.shape[1:3]
    clusters = naive_clusters(query, centroids, load_bias)[..., 0]
    stand_ins = centroids[np.arange(heads)[:, None], clusters]
    query, key = naive_normalize(query), naive_normalize(key)
    block = np.arange(length) // block_size
    logits = np.where(
        block[:, None] == block, naive_logits(query, key), naive_logits(stand_ins, key)
    )
    return naive_softmax(logits, naive_mask(length, length, causal=True, **masks)) @ value


def causal_clustered_attention(
    query,
    key,
    value,
    centroids,
    *,
    block_size,
    load_bias=None,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Causal attention: exact in a query's own block, through its nearest centroid before it.

    With q, k the normalized queries and keys and c the nearest centroid of query i,
    `argmax_c centroid_c · q_i + load_bias_c`,

    ```
    output_i = sum_(j <= i) p_ij value_j / sum_(j <= i) p_ij
    p_ij = exp(q_i · k_j / sqrt(depth))             if j is in the block of i
    p_ij = exp(centroid_c · k_j / sqrt(depth))      if j is in an earlier block
    ```

    Output i only depends on positions up to i. The cost is O(n · (block_size + clusters) · depth),
    and the decoding cache does not grow with the sequence. Centroids get no gradient.

    Args:
        query: `[batch, heads, length, depth]`, not normalized.
        key: `[batch, heads, length, depth]`, or None for the queries themselves.
        value: `[batch, heads, length, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        block_size: int, positions in a block.
        load_bias: `[heads, clusters]`, or None for zeros.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which no query sees; or None. If `key`
            is None, it defaults to `query_mask`.
        dropout: float, share of the attention weights set to 0. Queries of one block that share a
            centroid drop the same weights before their block. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`. A query without visible keys gets 0.

    Raises:
        ValueError: if queries and keys differ in length.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention. Here centroids replace the
    mean queries, which makes it causal.

    >>> x, centroids = tf.random.normal([1, 2, 12, 4]), tf.random.normal([2, 3, 4])
    >>> causal_clustered_attention(x, x, x, centroids, block_size=4).shape
    TensorShape([1, 2, 12, 4])
    """
    if key is None and key_mask is None:
        key_mask = query_mask
    query, value = (tf.convert_to_tensor(x) for x in (query, value))
    message = "Causal clustered attention needs as many keys as queries."
    query, value = of_one_length(query, value, message)
    centroids = tf.stop_gradient(tf.convert_to_tensor(centroids))
    logits = size(query, 0) * query.shape[1] * size(query, 2) * (block_size + centroids.shape[1])
    return over_heads(
        lambda inputs: _attend(HeadInputs(**inputs), block_size, dropout),
        {"query": query, "key": key, "value": value},
        {"centroids": centroids, "load_bias": load_bias},
        {"query_mask": query_mask, "key_mask": key_mask, "seed": seed},
        logits,
        value.dtype,
    )


def _attend(inputs, block_size, dropout):
    """Computes causal clustered attention of some heads."""
    query, key = prepare(inputs.query, inputs.key)
    centroids, length = inputs.centroids, size(query, 2)
    clusters = centroids.shape[1]
    count, scale = ceil_div(length, block_size), query.shape[-1] ** -0.5
    cluster = nearest_centroid(query, centroids, inputs.load_bias)  # [batch, heads, length]
    seeds = tf.random.split(inputs.seed, 2) if dropout else (None, None)

    # [batch or 1, 1, blocks, 1, block_size]
    real = real_positions(length, inputs.key_mask)[:, None]
    real = split_blocks(real, count, block_size)[..., None, :]
    # [batch, heads, blocks, block_size, ...]
    keys, values = (split_blocks(x, count, block_size) for x in (key, inputs.value))
    places = tf.range(block_size)
    in_block = attend(
        split_blocks(query * scale, count, block_size),
        keys,
        values,
        (places <= places[:, None], real),
        dropout=dropout,
        seed=seeds[0],
    )
    # [batch, heads, blocks, clusters, ...]
    of_centroids = attend(
        tf.cast(centroids * scale, query.dtype)[None, :, None],
        keys,
        values,
        real,
        dropout=dropout,
        seed=seeds[1],
    )
    rows = cluster + tf.range(length) // block_size * clusters
    before_block = [
        tf.gather(join_blocks(x, count * clusters), rows, batch_dims=2)
        for x in merge_before(*of_centroids)
    ]
    output = merge_sets([join_blocks(x, length) for x in in_block], before_block)
    if inputs.query_mask is not None:
        output *= tf.cast(inputs.query_mask, output.dtype)[:, None, :, None]
    return output


def merge_before(output, logsumexp):
    """Merges the attention to each block into the attention to all blocks before it.

    Args:
        output: `[batch, heads, blocks, queries, value_depth]`.
        logsumexp: `[batch, heads, blocks, queries]`, of the logits; `MASKED` without keys.

    Returns:
        Two tensors of the same shapes; 0 and `MASKED` for the first block.

    >>> output, logsumexp = tf.ones([1, 1, 3, 1, 1]), tf.zeros([1, 1, 3, 1])
    >>> output, logsumexp = merge_before(output, logsumexp)
    >>> output[0, 0, :, 0, 0].numpy().tolist(), tf.exp(logsumexp[0, 0, :, 0]).numpy().tolist()
    ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0])
    """
    rows = tf.transpose(output, [0, 1, 3, 2, 4]), tf.transpose(logsumexp, [0, 1, 3, 2])[..., None]
    output, logsumexp = _before_each(*rows)
    return tf.transpose(output, [0, 1, 3, 2, 4]), tf.transpose(logsumexp[..., 0], [0, 1, 3, 2])


def _before_each(output, logsumexp):
    """Merges all rows before each row of `[..., rows, value_depth]` and `[..., rows, 1]`."""
    count, axis = output.shape[-2], output.shape.rank - 2
    if count is None or count <= RUN_SIZE:
        # If the number of rows is unknown, their pairs are still few compared with those of
        # positions.
        nothing = [tf.zeros_like(x[..., :1, :]) for x in (output, logsumexp)]
        return _merge_up_to(nothing[0], nothing[1] + MASKED, output, logsumexp)
    runs = ceil_div(count, RUN_SIZE)
    shape = [size(output, i) for i in range(axis)]

    def in_runs(x, fill):
        x = pad_axis(x, axis, 0, runs * RUN_SIZE - count, fill)
        return tf.reshape(x, [*shape, runs, RUN_SIZE, x.shape[-1]])

    output, logsumexp = in_runs(output, 0), in_runs(logsumexp, MASKED)
    # The attention of whole runs, [..., runs, value_depth] and [..., runs, 1].
    run_output = merge(output, logsumexp[..., 0], axis=axis + 1)
    run_logsumexp = tf.reduce_logsumexp(logsumexp, axis=axis + 1)
    first = [x[..., None, :] for x in _before_each(run_output, run_logsumexp)]
    merged = _merge_up_to(*first, output, logsumexp)
    return [tf.reshape(x, [*shape, -1, x.shape[-1]])[..., :count, :] for x in merged]


def _merge_up_to(first_output, first_logsumexp, output, logsumexp):
    """Merges a first row and all rows before each row; see `_before_each`."""
    output = tf.concat([first_output, output], axis=-2)
    logsumexp = tf.concat([first_logsumexp, logsumexp], axis=-2)
    count = size(output, output.shape.rank - 2)
    # Rows serve as keys whose logits are their logsumexps.
    no_product, places = tf.zeros_like(logsumexp), tf.range(count)
    allowed, bias = places <= places[:, None], tf.linalg.matrix_transpose(logsumexp)
    output, logsumexp = attend(no_product, no_product, output, allowed, bias=bias)
    return output[..., :-1, :], logsumexp[..., :-1, None]


def causal_clustered_cache(key, value, centroids, count, *, block_size, max_length=None):
    """Builds the cache of `causal_clustered_step`: the last block and a sum for each centroid.

    Args:
        key: `[batch, heads, length, depth]`, not normalized, from the first position.
        value: `[batch, heads, length, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        count: int scalar, number of positions in the cache, the first ones; others are padding.
        block_size: int, positions in a block.
        max_length: int, maximum length of the sequence, which also bounds the cached block.
            Defaults to None, for no maximum.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`, the last block with
        normalized keys; "output", `[batch, heads, clusters, value_depth]`, and "logsumexp",
        `[batch, heads, clusters]`, the attention of each centroid to all positions; and
        "output_before" and "logsumexp_before", the same for the positions before the last block.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> cache = causal_clustered_cache(x, x, tf.random.normal([2, 3, 4]), 50, block_size=8)
    >>> cache["key"].shape, cache["output"].shape
    (TensorShape([1, 2, 8, 4]), TensorShape([1, 2, 3, 4]))
    """
    key, value = normalize(tf.convert_to_tensor(key)), tf.convert_to_tensor(value)
    dtype = accumulation_dtype(key.dtype)

    def attend_before(end):
        """Computes the attention of each centroid to the positions before `end`."""
        allowed = tf.range(size(key, 2)) < end
        return attend(_scaled(centroids, key), key, tf.cast(value, dtype), allowed)

    # If the next position starts a block, the last block is the full one before it.
    start = tf.maximum(ceil_div(count, block_size) - 1, 0) * block_size
    return {
        **local_cache(key, value, count, _own_block(block_size), max_length=max_length),
        **dict(zip(NAMES, attend_before(count))),
        **dict(zip((f"{name}_before" for name in NAMES), attend_before(start))),
    }


def causal_clustered_step(
    query, key, value, cache, position, centroids, *, block_size, count=None, load_bias=None
):
    """Computes `causal_clustered_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`, not normalized.
        key: `[batch, heads, 1, depth]`, or None for the query itself.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `causal_clustered_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        centroids: `[heads, clusters, depth]`.
        block_size: int, positions in a block.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        load_bias: `[heads, clusters]`, or None for zeros.

    Returns:
        `[batch, heads, 1, value_depth]`, and the cache with this position added.

    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> cache = causal_clustered_cache(x, x, centroids, 49, block_size=8)
    >>> last = x[:, :, 49:]
    >>> output, cache = causal_clustered_step(
    ...     last, last, last, cache, 49, centroids, block_size=8
    ... )
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    query, key = prepare(query, key)
    after = _add(cache, key, value, position, centroids, block_size, count)
    visible = keys_in_view(after, position, _own_block(block_size))
    output, logsumexp = attend_step(query, *visible, return_logsumexp=True)
    cluster = nearest_centroid(query, centroids, load_bias)  # [batch, heads, 1]
    before, logsumexp_before = (
        tf.gather(after[f"{name}_before"], cluster, batch_dims=2) for name in NAMES
    )
    in_block = tf.cast(output, before.dtype), logsumexp
    output = merge_sets(in_block, (before, logsumexp_before))
    return tf.cast(output, value.dtype), like(after, cache)


def _add(cache, key, value, position, centroids, block_size, count):
    """Adds a position with a normalized key to the cache, in rows where it is not padding."""
    ring = {name: cache[name] for name in ("key", "value")}
    ring = add_position(ring, position, key, value, _own_block(block_size), count)
    starts = tf.cast(places_of_rows(position, 0)[:, 0] % block_size == 0, tf.int32)
    starts *= 1 if count is None else count
    before = {
        f"{name}_before": where_counted(starts, cache[name], cache[f"{name}_before"])
        for name in NAMES
    }
    logits = tf.matmul(_scaled(centroids, key), key, transpose_b=True)[..., 0]
    output, logsumexp = (cache[name] for name in NAMES)
    value = tf.broadcast_to(tf.cast(value, output.dtype), tf.shape(output))
    new = value, tf.cast(logits, logsumexp.dtype)
    merged = merge_sets((output, logsumexp), new, return_logsumexp=True)
    after = {name: where_counted(count, x, cache[name]) for name, x in zip(NAMES, merged)}
    return {**ring, **before, **after}


def _scaled(centroids, key):
    """Scales centroids as queries."""
    return tf.cast(centroids * key.shape[-1] ** -0.5, key.dtype)[None]


def _own_block(block_size):
    """Returns the `Neighborhood` of queries that see their own block."""
    return Neighborhood(block_size, look_back=0)
