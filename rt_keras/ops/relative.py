"""Relative positions of Shaw et al., for windows and for any pairs of positions."""

import tensorflow as tf

from rt_keras.ops.blocks import larger, pad_axis, size, sizes


def window_bias(query, embeddings, keys, offset, causal=False):
    """Computes relative logits where query a and key j of a block are `a + offset - j` apart.

    ```
    bias_aj = query_a · embeddings[clip(a + offset - j, -m, m) + m]
    ```

    Queries are multiplied once by the embeddings of all distances that occur, and each row is then
    shifted by its query's index, without a gather (Huang et al. 2018, Music Transformer, section
    3.4).

    Args:
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        embeddings: `[heads, 2 m + 1, depth]`, for distances from -m to m.
        keys: int, number of keys in a block's window.
        offset: int, index of the block's first query in its window.
        causal: bool, whether later keys are masked. Their biases are then undefined, which saves
            work if the block is the last of its window. Defaults to False.

    Returns:
        `[batch, heads, blocks, queries, keys]`.

    Source: Shaw et al. 2018, Self-Attention with Relative Position Representations, section 3.2,
    the part on keys; their table 3 finds no gain from the part on values.
    """
    queries = size(query, 3)
    # One more column than those that are read.
    columns = larger(keys + 1, offset + queries) if causal else keys + queries
    table = table_of_distances(embeddings, columns, offset + queries - 1, query.dtype)
    return by_key(tf.einsum("bhmqd,hrd->bhmqr", query, table), keys)


def by_key(x, keys):
    """Maps columns of distances to keys: key j of query a is in column queries - 1 - a + j.

    Args:
        x: `[batch, heads, blocks, queries, columns]`, with more columns than keys.
        keys: int, number of keys.

    Returns:
        `[batch, heads, blocks, queries, keys]`.
    """

    @tf.custom_gradient
    def shifted(x):
        batch, heads, blocks, queries, columns = sizes(x)
        # Rows that are one element shorter than the stride move each next row back by one column.
        flat = tf.reshape(x, [batch, heads, blocks, queries * columns])
        flat = flat[..., queries - 1 : queries - 1 + queries * (columns - 1)]
        rows = tf.reshape(flat, [batch, heads, blocks, queries, columns - 1])
        return rows[..., :keys], lambda upstream: by_distance(upstream, columns)

    return shifted(x)


def by_distance(x, columns):
    """Inverts `by_key`, with zeros where a distance has no key; it is also the gradient."""

    @tf.custom_gradient
    def shifted(x):
        batch, heads, blocks, queries, keys = sizes(x)
        rows = pad_axis(x, 4, 0, columns - 1 - keys)
        flat = tf.reshape(rows, [batch, heads, blocks, queries * (columns - 1)])
        # Concatenated, not padded: XLA on a CPU pads with a division for each element.
        before, after = (
            tf.zeros([batch, heads, blocks, count], x.dtype) for count in (queries - 1, 1)
        )
        flat = tf.concat([before, flat, after], axis=3)
        rows = tf.reshape(flat, [batch, heads, blocks, queries, columns])
        return rows, lambda upstream: by_key(upstream, keys)

    return shifted(x)


def table_of_distances(embeddings, columns, furthest, dtype):
    """Returns the embeddings of distances from `furthest` down, `[heads, columns, depth]`."""
    far = embeddings.shape[1] // 2
    index = tf.clip_by_value(furthest - tf.range(columns), -far, far) + far
    return tf.cast(tf.gather(embeddings, index, axis=1), dtype)


def pair_bias(query, embeddings, query_positions, key_positions):
    """Computes relative logits of queries and keys at any positions.

    ```
    bias_aj = query_a · embeddings[clip(query_positions_a - key_positions_j, -m, m) + m]
    ```

    Args:
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        embeddings: `[heads, 2 m + 1, depth]`, for distances from -m to m.
        query_positions: int `[batch, heads, blocks, queries]`.
        key_positions: int, broadcastable to `[batch, heads, blocks, keys]`.

    Returns:
        `[batch, heads, blocks, queries, keys]`.
    """
    far = embeddings.shape[1] // 2
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    index = tf.clip_by_value(distance, -far, far) + far
    products = tf.einsum("bhmqd,hrd->bhmqr", query, tf.cast(embeddings, query.dtype))
    return tf.gather(products, index, batch_dims=4)
