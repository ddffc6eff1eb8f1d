"""Relative position logits of Shaw et al., for windows and for any pairs of positions."""

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
        embeddings: `[heads, 2 m + 1, depth]`, of the distances -m ... m.
        keys: number of keys in a block's window.
        offset: place of the block's first query in its window.

    Returns:
        `[batch, heads, blocks, keys, queries]`.

    Source: Shaw et al. 2018, Self-Attention with Relative Position Representations, section 3.2,
    the part on keys; their table 3 finds no gain from the part on values.
    """
    batch, heads, blocks, queries = (size(query, axis) for axis in range(4))
    far = embeddings.shape[1] // 2
    # Column r of `products` is the distance offset + queries - 1 - r; query a needs, for key j,
    # column j + queries - 1 - a.
    columns = keys + queries - 1
    distances = tf.clip_by_value(offset + queries - 1 - tf.range(columns), -far, far) + far
    table = tf.cast(tf.gather(embeddings, distances, axis=1), query.dtype)
    products = tf.einsum("bhmqd,hrd->bhmqr", query, table)
    # A row one element longer than the stride moves each next row one column on: rows are
    # reversed, so that the last query starts at column 0.
    products = tf.reverse(products, axis=[3])
    flat = tf.reshape(products, [batch, heads, blocks, queries * columns])
    flat = tf.pad(flat, [[0, 0], [0, 0], [0, 0], [0, queries]])
    shifted = tf.reshape(flat, [batch, heads, blocks, queries, columns + 1])[..., :keys]
    return tf.linalg.matrix_transpose(tf.reverse(shifted, axis=[3]))


def pair_bias(query, embeddings, query_positions, key_positions):
    """Relative logits of pairs at any positions.

    ```
    bias_ja = query_a · embeddings[clip(query_positions_a - key_positions_j, -m, m) + m]
    ```

    Args:
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        embeddings: `[heads, 2 m + 1, depth]`, of the distances -m ... m.
        query_positions: int `[batch, heads, blocks, queries]`.
        key_positions: int `[batch, heads, blocks, keys]`.

    Returns:
        `[batch, heads, blocks, keys, queries]`.
    """
    far = embeddings.shape[1] // 2
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    index = tf.clip_by_value(distance, -far, far) + far
    products = tf.einsum("bhmqd,hrd->bhmqr", query, tf.cast(embeddings, query.dtype))
    return tf.linalg.matrix_transpose(tf.gather(products, index, batch_dims=4))
