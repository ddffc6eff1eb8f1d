"""Routing attention with balanced clusters: each centroid picks its nearest positions."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend
from rt_keras.ops.blocks import size
from rt_keras.ops.chunks import over_heads
from rt_keras.ops.relative import pair_bias
from rt_keras.ops.routing import centroid_scores, prepare


def balanced_attention(
    query,
    key,
    value,
    centroids,
    *,
    window_size,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
):
    """Routing attention where each centroid attends among the positions that score highest.

    With q, k the normalised queries and keys, each centroid c has the members

    ```
    Q_c = the window_size positions i with the highest centroid_c · q_i
    K_c = the window_size positions j with the highest centroid_c · k_j
    output_ic = sum_(j in K_c) softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth)) value_j
    output_i = mean of output_ic over the centroids c with i in Q_c; 0 if there is none
    ```

    and if causal only the keys j <= i in K_c. The cost is O(clusters · window_size²) and the
    selection O(n · clusters). Which positions are members depends on the whole sequence:
    **changing a later token can change an earlier output**, causal or not.

    Args:
        query: `[batch, heads, queries, depth]`, not normalised.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        window_size: members of a cluster; all positions where there are fewer.
        causal: whether query i sees key j only if j <= i.
        query_mask: bool `[batch, queries]`, False for padding: a member only once no other
            position is left, and its output is 0.
        key_mask: bool `[batch, keys]`, False for padding: a member only once no other position
            is left, and never attended to.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; further distances count as m.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Roy et al. 2021, section 4.1 and algorithm 1.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> balanced_attention(x, None, x, centroids, window_size=4, causal=True).shape
    TensorShape([1, 2, 12, 4])
    """
    logits = size(query, 0) * size(centroids, 0) * size(centroids, 1) * window_size**2
    return over_heads(
        lambda arguments: _balanced_attention(arguments, window_size, causal, dropout),
        {
            "query": query,
            "key": key,
            "value": value,
            "centroids": centroids,
            "relative_embeddings": relative_embeddings,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "seed": seed},
        logits,
        value.dtype,
    )


def _balanced_attention(arguments, window_size, causal, dropout):
    value, centroids = arguments["value"], arguments["centroids"]
    query_mask, key_mask = arguments.get("query_mask"), arguments.get("key_mask")
    query, key = prepare(arguments["query"], arguments.get("key"))
    if key is query and key_mask is None:
        key_mask = query_mask
    of_queries = _members(query, centroids, window_size, query_mask)
    same = key is query and key_mask is query_mask
    of_keys = of_queries if same else _members(key, centroids, window_size, key_mask)
    scaled = query * query.shape[-1] ** -0.5
    queries = tf.gather(scaled, of_queries, batch_dims=2)
    allowed = tf.ones([1, 1, 1, 1, 1], tf.bool)
    if causal:
        allowed = of_keys[..., :, None] <= of_queries[..., None, :]
    if key_mask is not None:
        allowed &= _at(key_mask, of_keys)[..., :, None]
    bias = None
    if "relative_embeddings" in arguments:
        bias = pair_bias(queries, arguments["relative_embeddings"], of_queries, of_keys)
    output, _ = attend(
        queries,
        tf.gather(key, of_keys, batch_dims=2),
        tf.gather(value, of_keys, batch_dims=2),
        allowed,
        bias=bias,
        dropout=dropout,
        seed=arguments.get("seed"),
    )
    output = _mean_of_clusters(output, of_queries, size(query, 2))
    if query_mask is not None:
        output *= tf.cast(query_mask, output.dtype)[:, None, :, None]
    return output


def _members(x, centroids, window_size, mask):
    """The positions of each cluster's members in ascending order, `[batch, heads, clusters, w]`."""
    scores = tf.linalg.matrix_transpose(centroid_scores(x, centroids))
    if mask is not None:
        scores = tf.where(tf.cast(mask, tf.bool)[:, None, None], scores, MASKED)
    length = size(x, 2)
    count = min(window_size, length) if isinstance(length, int) else tf.minimum(window_size, length)
    return tf.sort(tf.math.top_k(scores, count, sorted=False).indices, axis=-1)


def _at(mask, members):
    """The mask `[batch, length]` at each member `[batch, heads, clusters, w]`."""
    heads, clusters = size(members, 1), size(members, 2)
    flat = tf.reshape(members, [size(members, 0), -1])
    read = tf.gather(tf.cast(mask, tf.bool), flat, batch_dims=1)
    return tf.reshape(read, [size(members, 0), heads, clusters, -1])


def _mean_of_clusters(output, members, length):
    """Puts rows back to their positions: the mean where several clusters chose one."""
    batch, heads, depth = size(output, 0), size(output, 1), size(output, 4)
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1, 1])
    segments = tf.reshape(sequences * length + members, [-1])
    rows = tf.cast(tf.reshape(output, [-1, depth]), accumulation_dtype(output.dtype))
    means = tf.math.unsorted_segment_mean(rows, segments, batch * heads * length)
    return tf.cast(tf.reshape(means, [batch, heads, length, depth]), output.dtype)
