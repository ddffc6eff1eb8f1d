"""Routing attention where each position only belongs to its nearest centroid, so it can be causal.

This file has the op and the clusters. Attention then runs in the order of (cluster, position):
in `nearest_sorted.py` for shared queries and keys, and in `nearest_tiles.py` for separate keys.
Both use `nearest_windows.py`.
"""

import functools

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, merge_sets
from rt_keras.ops.blocks import (
    fold_heads,
    of_one_length,
    repeat_heads,
    shift_left,
    size,
    with_a_position,
)
from rt_keras.ops.nearest.assign import Routing, shifts_keys
from rt_keras.ops.nearest.separate import attend_tiles, intervals_around_blocks, key_intervals
from rt_keras.ops.nearest.shared import attend_sorted, block_size_of
from rt_keras.ops.slices import over_heads, slices_of_blocks


def nearest_attention(
    query,
    key,
    value,
    centroids,
    *,
    window_size,
    num_probes=1,
    block_size=None,
    look_back=1,
    routed_key="key",
    causal=False,
    load_bias=None,
    scale=None,
    use_query_key_norm=True,
    query_mask=None,
    key_mask=None,
    documents=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Routing attention of each query to the last keys of its nearest centroids.

    With q, k the normalized queries and keys and μ(x) = argmax_c centroid_c · x + load_bias_c,

    ```
    output_i = sum_(j in N(i)) softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth)) value_j
    ```

    where N(i) are the last `window_size` positions j <= i with μ(k_j) = μ(q_i). If not causal,
    N(i) are the last window_size // 2 such positions before i and the first
    window_size - window_size // 2 starting at i. With `num_probes` p, N(i) is the union of these
    sets for the p centroids nearest to q_i, under one softmax.

    Without `use_query_key_norm`, logits use the unnormalized queries and keys; clusters do not
    change.

    With `routed_key` "previous_query", the key of position j is the query of position j - 1, and
    the first position has no key: a query finds the positions after similar queries. If not causal,
    i does not see position i + 1, whose key is its own query.

    With a `block_size`, N(i) leaves out the window of i in `local_attention` with these blocks.
    N(i) are the last `window_size` positions of the cluster before that window; if not causal, the
    last window_size // 2 before it and the first window_size - window_size // 2 after it.

    If causal, output i only depends on positions up to i. No selection depends on the rest of the
    sequence, so decoding only needs the last `window_size` keys and values of each cluster.

    Positions are sorted by (cluster, position). Shared queries and keys attend in that order
    as in local attention, in blocks of B = `window_size`, or of an equal part of it of at most 128,
    with n · (window_size + B) products; see `nearest_sorted.py`. Separate keys need twice
    as many; see `nearest_tiles.py`. With p probes there are p times as many queries.

    With grouped-query attention, each key/value head and its centroids serve heads / key_heads
    consecutive query heads. Its keys are sorted once, unless there are relative positions.

    Args:
        query: `[batch, heads, length, depth]`, not normalized.
        key: `[batch, key_heads, length, depth]`, or None for the queries themselves.
        value: `[batch, key_heads, length, value_depth]`.
        centroids: `[key_heads, clusters, depth]`.
        window_size: int, maximum number of keys that a query attends to in one cluster.
        num_probes: int, number of clusters in which each query attends. Defaults to 1.
        block_size, look_back: ints, the local window to leave out; see `local_attention`.
            `block_size` defaults to None, which leaves out nothing.
        routed_key: "key" or "previous_query", see above. The latter needs `key` None and no
            `block_size`; a position that `key_mask` hides still counts toward `window_size`.
            Defaults to "key".
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        load_bias: `[key_heads, clusters]`, added to the scores, or None for zeros.
        scale: `[heads]`, a factor of q_i · (k_j + r) besides 1 / sqrt(depth), or None for ones.
        use_query_key_norm: bool, whether q and k in the logits are normalized; clusters are always
            those of normalized vectors. Defaults to True.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which belongs to no cluster. With
            shared queries and keys, None means `query_mask`.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, which do
            not see one another; or None. Only without a `block_size`.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; distances are clipped to ±m. None
            for no relative positions.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        return_logsumexp: bool, whether to also return the logsumexp of each query's logits, which
            `merge` needs to combine the output with attention to other keys. Defaults to False.

    Returns:
        `[batch, heads, length, value_depth]`. A query without keys gets 0. With `return_logsumexp`
        also the logsumexp `[batch, heads, length]`, float32 (float64 for float64 queries).

    Raises:
        ValueError: if queries and keys differ in length, or if `routed_key` is unknown, or
            "previous_query" with a key or a `block_size`.

    Source: Roy et al. 2021, section 4.1, the equation of X'_i; the exact parallel form is ours.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> nearest_attention(x, None, x, centroids, window_size=4, causal=True).shape
    TensorShape([1, 2, 12, 4])
    """
    message = 'Assignment "nearest" needs as many keys as queries; "balanced" does not.'
    query, value = of_one_length(query, value, message)
    length = size(query, 2)
    shifted = shifts_keys(routed_key)
    if shifted and not (key is None and block_size is None):
        raise ValueError(
            "routed_key='previous_query' needs key=None and block_size=None. Received: "
            f"{'no ' if key is None else 'a '}key, block_size={block_size}."
        )
    dtype = accumulation_dtype(query.dtype)
    heads = query.shape[1]
    sides = 2 if block_size is not None and not causal else 1
    shared = key is None and num_probes == 1 and block_size is None
    keys = (window_size + block_size_of(window_size)) * (1 if shared else 2) * sides
    logits = size(query, 0) * heads * length * num_probes * keys
    options = {
        "num_clusters": centroids.shape[1],
        "window_size": window_size,
        "causal": causal,
        "shifted": shifted,
        "dropout": dropout,
        "return_logsumexp": return_logsumexp,
        "chunks": slices_of_blocks(centroids.shape[0], logits),
    }
    local = None if block_size is None else (block_size, look_back)

    def attend(arguments):
        return _attend(arguments, num_probes, local, use_query_key_norm, options)

    return over_heads(
        functools.partial(with_a_position, attend),
        {"query": query, "key": key, "value": value},
        {
            "centroids": centroids,
            "load_bias": load_bias,
            "relative_embeddings": relative_embeddings,
            "scale": scale,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "documents": documents, "seed": seed},
        logits,
        (value.dtype, dtype) if return_logsumexp else value.dtype,
    )


def _attend(arguments, num_probes, local, use_query_key_norm, options):
    """Computes the attention of some heads."""
    causal, shifted = options["causal"], options["shifted"]
    num_clusters, window_size = options["num_clusters"], options["window_size"]
    arguments, seen = _shifted(arguments, causal) if shifted else (arguments, None)
    query_mask, key_mask = arguments.get("query_mask"), arguments.get("key_mask")
    are_one_list = "key" not in arguments
    if are_one_list and key_mask is None:
        key_mask = query_mask
    weights = (arguments.get(name) for name in ("load_bias", "scale"))
    routing = Routing(arguments["centroids"], num_probes, *weights, use_query_key_norm)
    query, key, of_queries, of_keys = routing.route(
        arguments["query"], arguments.get("key"), query_mask, key_mask
    )
    # The bound is that of the logits of normalized vectors.
    bound = query.shape[-1] ** 0.5 if use_query_key_norm and routing.scale is None else None
    scaled, value, heads = routing.scaled(query), arguments["value"], query.shape[1]
    if are_one_list:
        value = repeat_heads(value, heads)
    options = {**options, "bound": bound, "seen": seen}
    names = "relative_embeddings", "seed", "documents"
    options |= {name: arguments.get(name) for name in names}
    if are_one_list and key_mask is query_mask and num_probes == 1 and local is None:
        return attend_sorted(scaled, key, value, of_queries, options)
    if options["relative_embeddings"] is not None:
        # Each query head has its own table of embeddings, and so needs its own keys.
        key, value, of_keys = (repeat_heads(x, heads) for x in (key, value, of_keys))
    # All queries of a key head are sorted together.
    of_queries = fold_heads(of_queries, key.shape[1])

    lists = scaled, key, value, of_queries, of_keys
    if local is None:
        inclusive = causal and not shifted
        intervals = key_intervals(of_queries, of_keys, num_clusters, window_size, causal, inclusive)
        return attend_tiles(*lists, intervals, options)

    def attend_side(count, after, return_logsumexp):
        intervals = intervals_around_blocks(
            of_queries, of_keys, num_clusters, count, *local, after=after
        )
        more = {"window_size": count, "return_logsumexp": return_logsumexp}
        return attend_tiles(*lists, intervals, {**options, **more})

    return_logsumexp = options["return_logsumexp"]
    if causal:
        return attend_side(window_size, False, return_logsumexp)
    behind = attend_side(window_size - window_size // 2, True, True)
    if window_size == 1:
        return behind if return_logsumexp else behind[0]
    before = attend_side(window_size // 2, False, True)
    return merge_sets(before, behind, return_logsumexp=return_logsumexp)


def _shifted(arguments, causal):
    """Shifts the value of position j + 1 to j, whose query is its key.

    Returns:
        The arguments, without a mask of the keys; and a mask of the values that may be seen
        instead, bool `[batch or 1, length]`, or None for all.
    """
    found = dict(arguments)
    seen = found.pop("key_mask", arguments.get("query_mask"))
    if seen is None and not causal:
        # The last query is the key of no position. Causal attention never sees that position.
        seen = tf.ones([1, size(arguments["query"], 2)], tf.bool)
    if seen is not None:
        seen = shift_left(tf.cast(seen, tf.bool), 1)
    documents = arguments.get("documents")
    if documents is not None:
        here = documents == shift_left(documents, 1)
        seen = here if seen is None else seen & here
    found["value"] = shift_left(arguments["value"], 2)
    return found, seen
