"""Attention of the Reformer: inside the buckets of several locality-sensitive hashes."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, merge
from rt_keras.ops.blocks import (
    ceil_div,
    gather_rows,
    join_blocks,
    overlapping_blocks,
    real_positions,
    size,
    sizes,
    split_blocks,
    with_a_position,
)
from rt_keras.ops.naive import naive_attention, naive_mask
from rt_keras.ops.nearest.assign import sort_by_cluster
from rt_keras.ops.slices import HeadInputs, over_heads

# Subtracted from the logit of a query for itself, which then only counts if it sees no other key.
SELF_PENALTY = 1e5


def naive_lsh_attention(
    query, key, value, rotations, *, block_size, causal=False, query_mask=None, key_mask=None
):
    """The equation of `lsh_attention`: see who shares a bucket in adjacent blocks of a round."""
    batch, heads, length, _ = query.shape
    rotated = np.einsum("bhnd,hrdc->bhrnc", query, rotations)
    buckets = np.concatenate([rotated, -rotated], axis=-1).argmax(axis=-1)
    real = np.ones([batch, length], bool) if query_mask is None else np.asarray(query_mask, bool)
    visible = np.zeros([batch, heads, length, length], bool)
    for b, h, r in np.ndindex(buckets.shape[:3]):
        bucket = np.where(real[b], buckets[b, h, r], rotated.shape[-1] * 2)
        block = np.argsort(np.argsort(bucket, kind="stable")) // block_size
        step = block[:, None] - block
        visible[b, h] |= (bucket[:, None] == bucket) & (step >= 0) & (step <= 1)
    visible &= naive_mask(length, length, causal=causal, query_mask=real, key_mask=key_mask)
    # A query sees itself only if it sees no other key.
    others = visible & ~np.eye(length, dtype=bool)
    visible = np.where(others.any(axis=-1, keepdims=True), others, visible)
    key = query / np.linalg.norm(query, axis=-1, keepdims=True)
    return naive_attention(query, key, value, visible)


def lsh_attention(
    query,
    key,
    value,
    rotations,
    *,
    block_size,
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Attention with shared queries and keys, inside the buckets of several hashes.

    In round r, position i is in the bucket `b_ri` of `lsh_buckets`. Positions are sorted by
    (bucket, position) and cut into blocks. P_ri are the positions in the bucket of i that are in
    its block or the previous one. With N_ij the number of rounds in which j is in P_ri,

    ```
    output_i = sum_r sum_(j in P_ri) softmax_rj(query_i · key_j / sqrt(depth) - log N_ij)
               value_j,    key_j = query_j / |query_j|
    ```

    that is, each j in the union of all P_ri counts once. A query sees itself only if it sees
    no other key. The cost is O(n · rounds · block_size).

    With `causal`, no query attends to later positions, but which earlier ones share its block
    depends on how many later ones are in lower buckets.

    Args:
        query: `[batch, heads, length, depth]`, not normalized.
        key: must be None, because queries and keys are shared.
        value: `[batch, heads, length, value_depth]`.
        rotations: `[heads, rounds, depth, buckets / 2]`.
        block_size: int, positions in a block.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, length]`, False for padding, which is in no bucket and whose
            output is 0; or None.
        key_mask: bool `[batch, length]`, False for positions that no query sees; or None.
        dropout: float, share of the attention weights set to 0 in each round. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`. A query that may see no key gets 0.

    Raises:
        ValueError: if a key is given.

    Source: Kitaev et al. 2020, Reformer: The Efficient Transformer, section 2.

    >>> x, rotations = tf.random.normal([1, 2, 12, 4]), tf.random.normal([2, 3, 4, 2])
    >>> lsh_attention(x, None, x, rotations, block_size=4).shape
    TensorShape([1, 2, 12, 4])
    """
    if key is not None:
        raise ValueError("lsh_attention takes no key, because queries and keys are shared")
    query, value, rotations = (tf.convert_to_tensor(x) for x in (query, value, rotations))
    logits = size(query, 0) * query.shape[1] * rotations.shape[1] * size(query, 2) * 2 * block_size

    def attend_heads(inputs):
        return _attend(HeadInputs(**inputs), block_size, causal, dropout)

    return over_heads(
        lambda inputs: with_a_position(attend_heads, inputs),
        {"query": query, "value": value},
        {"rotations": tf.stop_gradient(rotations)},
        {"query_mask": query_mask, "key_mask": key_mask, "seed": seed},
        logits,
        value.dtype,
    )


def lsh_buckets(x, rotations):
    """Computes the bucket of each vector in each round, `argmax_c [x · R, -x · R]_c`.

    Args:
        x: `[batch, heads, length, depth]`.
        rotations: `[heads, rounds, depth, buckets / 2]`, R above.

    Returns:
        int32 `[batch, heads, rounds, length]`, from 0 to buckets - 1. There is no gradient.

    Source: Kitaev et al. 2020, Reformer: The Efficient Transformer, section 2.

    >>> x = tf.constant([[[[1.0, 2.0], [-3.0, 1.0]]]])
    >>> lsh_buckets(x, tf.eye(2)[None, None]).numpy().tolist()
    [[[[1, 2]]]]
    """
    dtype = accumulation_dtype(x.dtype)
    x, rotations = (tf.cast(tf.stop_gradient(y), dtype) for y in (x, rotations))
    rotated = tf.einsum("bhnd,hrdc->bhrnc", x, rotations)
    return tf.argmax(tf.concat([rotated, -rotated], axis=-1), axis=-1, output_type=tf.int32)


class Rounds(NamedTuple):
    """Positions in the order of each round of each head, or blocks or windows of them."""

    query: tf.Tensor  # [batch, heads * rounds, length, depth]
    value: tf.Tensor  # [batch, heads * rounds, length, value_depth]
    position: tf.Tensor  # int [batch, heads * rounds, length]
    real: tf.Tensor  # bool [batch, heads * rounds, length]
    bucket: tf.Tensor  # int [batch, heads * rounds, length, rounds], those of all rounds
    block: tf.Tensor  # int [batch, heads * rounds, length, rounds]


def _attend(inputs, block_size, causal, dropout):
    """Computes the attention of some heads in all rounds."""
    query, rotations, query_mask = inputs.query, inputs.rotations, inputs.query_mask
    batch, heads, length = (size(query, axis) for axis in range(3))
    rounds, num_buckets = rotations.shape[1], 2 * rotations.shape[3]
    buckets = lsh_buckets(query, rotations)  # [batch, heads, rounds, length]
    is_query = real_positions(length, query_mask)[:, None]  # [batch or 1, 1, length]
    buckets = tf.where(is_query[:, None], buckets, num_buckets)
    is_key = is_query & real_positions(length, inputs.key_mask)[:, None]
    # Rounds are treated as more heads.
    flat = tf.reshape(buckets, [batch, heads * rounds, 1, length])
    order, rank, _ = sort_by_cluster(flat, num_buckets)
    block = tf.reshape(rank // block_size, [batch, heads, rounds, length])

    def in_order(x):
        """Sorts `[batch, heads, length, ...]` in the order of each round."""
        return gather_rows(tf.repeat(x, rounds, axis=1), order, rank)

    in_rounds = Rounds(
        query=in_order(query),
        value=in_order(inputs.value),
        position=order,
        real=in_order(tf.broadcast_to(is_key, [batch, heads, length])),
        bucket=in_order(tf.linalg.matrix_transpose(buckets)),
        block=in_order(tf.linalg.matrix_transpose(block)),
    )
    round_of_order = tf.tile(tf.range(rounds), [heads])  # [heads * rounds]
    results = _attend_blocks(
        in_rounds, round_of_order, num_buckets, block_size, causal, dropout, inputs.seed
    )
    results = (gather_rows(join_blocks(x, length), rank, order) for x in results)
    # [batch, heads, rounds, length, ...]
    results = (tf.reshape(x, [batch, heads, rounds, *sizes(x)[2:]]) for x in results)
    return merge(*results, axis=2)


def _attend_blocks(in_rounds, round_of_order, num_buckets, block_size, causal, dropout, seed):
    """Computes attention of each block to itself and the previous one, and the logsumexp.

    Args:
        in_rounds: `Rounds`.
        round_of_order: int `[heads * rounds]`, the round of each order.
        num_buckets: int, the bucket of padding.
        block_size, causal, dropout, seed: see `lsh_attention`.
    """
    count = ceil_div(size(in_rounds.query, 2), block_size)
    # [batch, heads * rounds, blocks, block_size, ...]
    queries = Rounds(*(split_blocks(x, count, block_size) for x in in_rounds))
    # [batch, heads * rounds, blocks, 2 * block_size, ...]. Beyond both ends, `real` is False.
    keys = Rounds(*(overlapping_blocks(x, count, block_size, 2, block_size) for x in in_rounds))
    together = [
        _together(queries, keys, number, num_buckets) for number in range(in_rounds.bucket.shape[3])
    ]
    times = tf.add_n([tf.cast(x, tf.int32) for x in together])
    this_round = round_of_order[:, None, None, None]
    allowed = tf.reduce_any([x & (this_round == i) for i, x in enumerate(together)], axis=0)
    allowed &= keys.real[..., None, :]
    position, other_position = queries.position[..., None], keys.position[..., None, :]
    if causal:
        allowed &= other_position <= position
    dtype = accumulation_dtype(in_rounds.query.dtype)
    bias = -tf.math.log(tf.cast(tf.maximum(times, 1), dtype))
    bias -= tf.where(position == other_position, tf.constant(SELF_PENALTY, dtype), 0.0)
    query = queries.query
    # In float16 the epsilon of the norm would be 0, and the gradient of the zeros beyond the ends
    # NaN.
    key = tf.math.l2_normalize(tf.cast(keys.query, dtype), axis=-1)
    return attend(
        query * query.shape[-1] ** -0.5,
        tf.cast(key, query.dtype),
        keys.value,
        allowed,
        bias=bias,
        dropout=dropout,
        seed=seed,
    )


def _together(queries, keys, number, num_buckets):
    """Returns which queries and keys share a bucket and adjacent blocks in a round."""
    bucket, block = (x[..., number][..., None] for x in (queries.bucket, queries.block))
    other_bucket, other_block = (x[..., number][..., None, :] for x in (keys.bucket, keys.block))
    step = block - other_block
    return (bucket == other_bucket) & (bucket < num_buckets) & (step >= 0) & (step <= 1)
