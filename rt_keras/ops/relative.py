"""Relative positions of Shaw et al., for windows and for any pairs of positions."""

import tensorflow as tf

from rt_keras.ops.blocks import size


def window_bias(query, embeddings, keys, offset, causal=False):
    """Relative logits where query a and key j of every block lie `a + offset - j` apart.

    ```
    bias_ja = query_a · embeddings[clip(a + offset - j, -m, m) + m]
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
        `[batch, heads, blocks, keys, queries]`.

    Source: Shaw et al. 2018, Self-Attention with Relative Position Representations, section 3.2,
    the part on keys; their table 3 finds no gain from the part on values.
    """
    batch, heads, blocks, queries = (size(query, axis) for axis in range(4))
    # One column or more beyond those that count. Rows of an odd length are read across, in the
    # transposition, without falling on the same few sets of a cache again and again.
    columns = keys + (8 if causal else queries)
    table = _table(embeddings, columns, offset + queries - 1, query.dtype)
    products = table_products(query, table, "bhmqd,hrd->bhmqr")
    # Key j of query a is in column queries - 1 - a + j: a row one element shorter than the stride
    # moves each next row one column back.
    flat = tf.reshape(products, [batch, heads, blocks, queries * columns])
    flat = flat[..., queries - 1 : queries - 1 + queries * (columns - 1)]
    shifted = tf.reshape(flat, [batch, heads, blocks, queries, columns - 1])[..., :keys]
    return tf.linalg.matrix_transpose(shifted)


def window_values(weights, embeddings, offset):
    """Sums of relative values where query a and key j of every block lie `a + offset - j` apart.

    ```
    output_a = sum_j weights_ja embeddings[clip(a + offset - j, -m, m) + m]
    ```

    Args:
        weights: `[batch, heads, blocks, keys, queries]`.
        embeddings: `[heads, 2 m + 1, depth]` or `[1, 2 m + 1, depth]`, of the distances -m ... m.
        offset: place of the block's first query in its window.

    Returns:
        `[batch, heads, blocks, queries, depth]`.

    Source: Shaw et al. 2018, section 3.2, the part on values.
    """
    batch, heads, blocks, keys, queries = (size(weights, axis) for axis in range(5))
    columns = keys + queries
    table = _table(embeddings, columns, offset + queries - 1, weights.dtype)
    # The way back of `window_bias`: each row one column on from the row below it.
    rows = tf.linalg.matrix_transpose(weights)
    rows = tf.pad(rows, [[0, 0], [0, 0], [0, 0], [0, 0], [0, columns - 1 - keys]])
    flat = tf.reshape(rows, [batch, heads, blocks, queries * (columns - 1)])
    flat = tf.pad(flat, [[0, 0], [0, 0], [0, 0], [queries - 1, 1]])
    by_distance = tf.reshape(flat, [batch, heads, blocks, queries, columns])
    return table_products(by_distance, table, "bhmqr,hrd->bhmqd")


def table_products(x, table, equation):
    """An einsum over a table of embeddings; a table for all heads loses its axis h of size 1.

    Broadcast along the heads it would be copied for each block.
    """
    if table.shape[0] == 1:
        return tf.einsum(equation.replace("hrd", "rd"), x, table[0])
    return tf.einsum(equation, x, table)


def _table(embeddings, columns, furthest, dtype):
    """The embeddings of distances from `furthest` downwards, `[heads, columns, depth]`."""
    far = embeddings.shape[1] // 2
    index = tf.clip_by_value(furthest - tf.range(columns), -far, far) + far
    return tf.cast(tf.gather(embeddings, index, axis=1), dtype)


def pair_bias(query, embeddings, query_positions, key_positions):
    """Relative logits of pairs at any positions.

    ```
    bias_ja = query_a · embeddings[clip(query_positions_a - key_positions_j, -m, m) + m]
    ```

    Args:
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        embeddings: `[heads, 2 m + 1, depth]` or `[1, 2 m + 1, depth]`, of the distances -m ... m.
        query_positions: int `[batch, heads, blocks, queries]`.
        key_positions: int `[batch, heads, blocks, keys]`.

    Returns:
        `[batch, heads, blocks, keys, queries]`.
    """
    far = embeddings.shape[1] // 2
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    index = tf.clip_by_value(distance, -far, far) + far
    products = table_products(query, tf.cast(embeddings, query.dtype), "bhmqd,hrd->bhmqr")
    return tf.linalg.matrix_transpose(tf.gather(products, index, batch_dims=4))
