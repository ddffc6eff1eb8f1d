"""Relative positions of Shaw et al., for windows and for any pairs of positions."""

import tensorflow as tf

from rt_keras.ops.blocks import size


def window_bias(query, embeddings, keys, offset):
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

    Returns:
        `[batch, heads, blocks, keys, queries]`.

    Source: Shaw et al. 2018, Self-Attention with Relative Position Representations, section 3.2,
    the part on keys; their table 3 finds no gain from the part on values.
    """
    batch, heads, blocks, queries = (size(query, axis) for axis in range(4))
    table = _table(embeddings, keys, queries, offset, query.dtype)
    columns = keys + queries - 1
    products = table_products(query, table, "bhmqd,hrd->bhmqr")
    # A row one element longer than the stride moves each next row one column on: rows are
    # reversed, so that the last query starts at column 0.
    products = tf.reverse(products, axis=[3])
    flat = tf.reshape(products, [batch, heads, blocks, queries * columns])
    flat = tf.pad(flat, [[0, 0], [0, 0], [0, 0], [0, queries]])
    shifted = tf.reshape(flat, [batch, heads, blocks, queries, columns + 1])[..., :keys]
    return tf.linalg.matrix_transpose(tf.reverse(shifted, axis=[3]))


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
    columns = keys + queries - 1
    # The way back of `window_bias`: each row one column on from the row below it.
    rows = tf.reverse(tf.linalg.matrix_transpose(weights), axis=[3])
    rows = tf.pad(rows, [[0, 0], [0, 0], [0, 0], [0, 0], [0, queries]])
    flat = tf.reshape(rows, [batch, heads, blocks, queries * (columns + 1)])
    by_distance = tf.reshape(
        flat[..., : queries * columns], [batch, heads, blocks, queries, columns]
    )
    table = _table(embeddings, keys, queries, offset, weights.dtype)
    return table_products(tf.reverse(by_distance, axis=[3]), table, "bhmqr,hrd->bhmqd")


def table_products(x, table, equation):
    """An einsum over a table of embeddings; a table for all heads loses its axis h of size 1.

    Broadcast along the heads it would be copied for each block.
    """
    if table.shape[0] == 1:
        return tf.einsum(equation.replace("hrd", "rd"), x, table[0])
    return tf.einsum(equation, x, table)


def _table(embeddings, keys, queries, offset, dtype):
    """The embedding of every distance that occurs in a window, `[heads, columns, depth]`.

    Column r is the distance offset + queries - 1 - r; query a needs, for key j, column
    j + queries - 1 - a.
    """
    far = embeddings.shape[1] // 2
    distances = offset + queries - 1 - tf.range(keys + queries - 1)
    index = tf.clip_by_value(distances, -far, far) + far
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
