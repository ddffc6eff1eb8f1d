"""Relative positions of Shaw et al., for windows and for any pairs of positions."""

import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, size


def window_bias(query, embeddings, keys, offset, causal=False):
    """Relative logits where query a and key j of every block lie `a + offset - j` apart.

    ```
    bias_aj = query_a · embeddings[clip(a + offset - j, -m, m) + m]
    ```

    Computed as one product with the distances that occur, each row then shifted by its query's
    place: no gather (Huang et al. 2018, Music Transformer, section 3.4).

    Args:
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        embeddings: `[heads, 2 m + 1, depth]`, of the distances -m ... m; or `[1, 2 m + 1, depth]`,
            the same for all heads.
        keys: number of keys in a block's window.
        offset: place of the block's first query in its window.
        causal: whether the block is the last of its window and later keys do not count: their
            biases are then of other distances, and part of the work is saved.

    Returns:
        `[batch, heads, blocks, queries, keys]`.

    Source: Shaw et al. 2018, Self-Attention with Relative Position Representations, section 3.2,
    the part on keys; their table 3 finds no gain from the part on values.
    """
    queries = size(query, 3)
    # One column more than those that count.
    columns = keys + (1 if causal else queries)
    table = _table(embeddings, columns, offset + queries - 1, query.dtype)
    products = table_products(query, table, transpose=True)
    return _by_key(products, keys)


def window_values(weights, embeddings, offset, causal=False):
    """Sums of relative values where query a and key j of every block lie `a + offset - j` apart.

    ```
    output_a = sum_j weights_aj embeddings[clip(a + offset - j, -m, m) + m]
    ```

    Args:
        weights: `[batch, heads, blocks, queries, keys]`.
        embeddings: `[heads, 2 m + 1, depth]` or `[1, 2 m + 1, depth]`, of the distances -m ... m.
        offset: place of the block's first query in its window.
        causal: whether the block is the last of its window and each query weighs all later keys
            alike: by 0, but where it has no key at all.

    Returns:
        `[batch, heads, blocks, queries, depth]`.

    Source: Shaw et al. 2018, section 3.2, the part on values.
    """
    if not causal:
        return _window_values(weights, embeddings, offset, size(weights, 3))
    queries, keys = size(weights, 3), size(weights, 4)
    later = tf.range(keys) > offset + tf.range(queries)[:, None]
    of_seen = tf.where(later, tf.zeros_like(weights), weights)
    sums = _window_values(of_seen, embeddings, offset, 1)
    # The weight of the last key, where it is later, is that of all that are, and a constant.
    later = tf.cast(later, weights.dtype)
    of_tables = tf.broadcast_to(later, [1, embeddings.shape[0], 1, queries, keys])
    of_later = _window_values(of_tables, embeddings, offset, queries)
    return sums + tf.stop_gradient(weights[..., -1:]) * later[:, -1:] * of_later


def _window_values(weights, embeddings, offset, more):
    """The sums over so many distances as there are keys and `more`, from the furthest down."""
    queries, columns = size(weights, 3), size(weights, 4) + more
    table = _table(embeddings, columns, offset + queries - 1, weights.dtype)
    return table_products(_by_distance(weights, columns), table)


def _by_key(x, keys):
    """Rows of distances to rows of keys: key j of query a is in column queries - 1 - a + j.

    Args:
        x: `[batch, heads, blocks, queries, columns]`, with more columns than keys.
        keys: how many there are.

    Returns:
        `[batch, heads, blocks, queries, keys]`.
    """

    @tf.custom_gradient
    def shifted(x):
        batch, heads, blocks, queries, columns = (size(x, axis) for axis in range(5))
        # A row one element shorter than the stride moves each next row one column back.
        flat = tf.reshape(x, [batch, heads, blocks, queries * columns])
        flat = flat[..., queries - 1 : queries - 1 + queries * (columns - 1)]
        rows = tf.reshape(flat, [batch, heads, blocks, queries, columns - 1])
        return rows[..., :keys], lambda upstream: _by_distance(upstream, columns)

    return shifted(x)


def _by_distance(x, columns):
    """The way back of `_by_key`, and its gradient; zeros where a distance has no key."""

    @tf.custom_gradient
    def shifted(x):
        batch, heads, blocks, queries, keys = (size(x, axis) for axis in range(5))
        rows = pad_axis(x, 4, 0, columns - 1 - keys)
        flat = tf.reshape(rows, [batch, heads, blocks, queries * (columns - 1)])
        # Joined, not padded: XLA on a CPU pads with a division for each element.
        before, after = (
            tf.zeros([batch, heads, blocks, count], x.dtype) for count in (queries - 1, 1)
        )
        flat = tf.concat([before, flat, after], axis=3)
        rows = tf.reshape(flat, [batch, heads, blocks, queries, columns])
        return rows, lambda upstream: _by_key(upstream, keys)

    return shifted(x)


def table_products(x, table, transpose=False):
    """The last axis of x times a table for each head, or the table transposed.

    A table for all heads makes one product of matrices: broadcast along the heads it would be
    copied for each block, and as an einsum its gradient would transpose x.

    Args:
        x: `[batch, heads, blocks, n, rows]`, or `[batch, heads, blocks, n, depth]` with
            `transpose`.
        table: `[heads, rows, depth]`, or `[1, rows, depth]`, the same for all heads.
        transpose: whether to sum over the depth.

    Returns:
        `[batch, heads, blocks, n, depth]`, or `[batch, heads, blocks, n, rows]` with `transpose`.
    """
    if table.shape[0] > 1:
        return tf.einsum("bhmqd,hrd->bhmqr" if transpose else "bhmqr,hrd->bhmqd", x, table)
    shape = [size(x, axis) for axis in range(5)]
    product = tf.matmul(tf.reshape(x, [-1, shape[-1]]), table[0], transpose_b=transpose)
    return tf.reshape(product, [*shape[:-1], size(product, 1)])


def _table(embeddings, columns, furthest, dtype):
    """The embeddings of distances from `furthest` downwards, `[heads, columns, depth]`."""
    far = embeddings.shape[1] // 2
    index = tf.clip_by_value(furthest - tf.range(columns), -far, far) + far
    return tf.cast(tf.gather(embeddings, index, axis=1), dtype)


def pair_bias(query, embeddings, query_positions, key_positions):
    """Relative logits of pairs at any positions.

    ```
    bias_aj = query_a · embeddings[clip(query_positions_a - key_positions_j, -m, m) + m]
    ```

    Args:
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        embeddings: `[heads, 2 m + 1, depth]` or `[1, 2 m + 1, depth]`, of the distances -m ... m.
        query_positions: int `[batch, heads, blocks, queries]`.
        key_positions: int `[batch, heads, blocks, keys]`.

    Returns:
        `[batch, heads, blocks, queries, keys]`.
    """
    far = embeddings.shape[1] // 2
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    index = tf.clip_by_value(distance, -far, far) + far
    products = table_products(query, tf.cast(embeddings, query.dtype), transpose=True)
    return tf.gather(products, index, batch_dims=4)
