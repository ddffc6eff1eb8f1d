"""Routing attention where each position only belongs to its nearest centroid, so it can be causal.

The naive version first, then the op. It attends in the order of (cluster, position): in `shared.py`
if queries are keys, else in `separate.py`.
"""

import numpy as np
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
from rt_keras.ops.naive import naive_attention, naive_mask, naive_normalize, naive_shared
from rt_keras.ops.nearest.assign import Assignment, shifts_keys
from rt_keras.ops.nearest.separate import attend_separate, intervals_around_blocks, key_intervals
from rt_keras.ops.nearest.shared import Options, attend_shared, block_size_of
from rt_keras.ops.slices import HeadInputs, over_heads, slices_of_blocks


def naive_nearest_attention(
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
    relative_embeddings=None,
    **masks,
):
    """The equation of `nearest_attention`: find the clusters, see the nearest members, attend."""
    length, shift = query.shape[2], int(routed_key == "previous_query")
    key, masks = naive_shared(query, key, **masks)
    query_clusters = naive_clusters(query, centroids, load_bias)[..., :num_probes]
    key_clusters = naive_clusters(key, centroids, load_bias)[..., 0]
    padding = masks["query_mask" if shift else "key_mask"]
    if padding is not None:
        key_clusters = np.where(padding[:, None], key_clusters, -1)
    local = None if block_size is None else (block_size, look_back)
    clusters = query_clusters, key_clusters
    visible = naive_nearest_keys(*clusters, window_size, causal, shift, local)
    visible &= naive_mask(length, length, **masks)
    if use_query_key_norm:
        query, key = naive_normalize(query), naive_normalize(key)
    if scale is not None:
        query = query * scale[:, None, None]
    return naive_attention(query, np.roll(key, shift, 2), value, visible, relative_embeddings)


def naive_clusters(x, centroids, load_bias=None):
    """The clusters of each vector, the nearest first, `[batch, heads, length, clusters]`."""
    scores = np.einsum("bhnd,hcd->bhnc", naive_normalize(x), centroids)
    if load_bias is not None:
        scores = scores + load_bias[:, None]
    return np.argsort(-scores, axis=-1, kind="stable")


def naive_nearest_keys(query_clusters, key_clusters, window_size, causal, shift=0, local=None):
    """The keys that each query sees, bool `[batch, heads, length, length]`.

    Args:
        query_clusters: int `[batch, heads, length, num_probes]`.
        key_clusters: int `[batch, heads, length]`, -1 for padding.
        window_size, causal: see `nearest_attention`.
        shift: int, 1 if the key of a position is the query of the previous one, else 0.
        local: `block_size` and `look_back` of the window to leave out, or None.
    """
    *shape, length, _ = query_clusters.shape
    visible = np.zeros([*shape, length, length + 1], bool)
    before = window_size if causal else window_size // 2
    for b, h, i, probe in np.ndindex(query_clusters.shape):
        members = np.flatnonzero(key_clusters[b, h] == query_clusters[b, h, i, probe]) + shift
        first = last = i + 1 if causal else i + shift
        if local is not None:
            block, (block_size, look_back) = i // local[0], local
            first, last = (block - look_back) * block_size, (block + look_back + 1) * block_size
        first, last = np.searchsorted(members, [first, last])
        visible[b, h, i, members[max(first - before, 0) : first]] = True
        visible[b, h, i, members[last : last + window_size - before]] = True
        # The key of the next position is the query itself.
        visible[b, h, i, i + 1] &= not shift
    return visible[..., :length]


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
    with n · (window_size + B) products; see `shared.py`. Separate keys need twice as many; see
    `separate.py`. With p probes there are p times as many queries.

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
    shifted = shifts_keys(routed_key)
    if shifted and not (key is None and block_size is None):
        raise ValueError(
            "routed_key='previous_query' needs key=None and block_size=None. Received: "
            f"{'no ' if key is None else 'a '}key, block_size={block_size}."
        )
    shared = key is None and num_probes == 1 and block_size is None
    sides = 2 if block_size is not None and not causal else 1
    keys = (window_size + block_size_of(window_size)) * (1 if shared else 2) * sides
    logits = size(query, 0) * query.shape[1] * size(query, 2) * num_probes * keys
    options = Options(
        num_clusters=centroids.shape[1],
        window_size=window_size,
        causal=causal,
        shifted=shifted,
        dropout=dropout,
        slices=slices_of_blocks(centroids.shape[0], logits),
    )
    local = None if block_size is None else (block_size, look_back)

    def attend_heads(inputs):
        return _attend(HeadInputs(**inputs), num_probes, use_query_key_norm, local, options)

    output, logsumexp = over_heads(
        lambda inputs: with_a_position(attend_heads, inputs),
        {"query": query, "key": key, "value": value},
        {
            "centroids": centroids,
            "load_bias": load_bias,
            "relative_embeddings": relative_embeddings,
            "scale": scale,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "documents": documents, "seed": seed},
        logits,
        (value.dtype, accumulation_dtype(query.dtype)),
    )
    return (output, logsumexp) if return_logsumexp else output


def _attend(inputs, num_probes, use_query_key_norm, local, options):
    """Computes the attention of some heads; `local` is the window to leave out, or None."""
    key, value, query_mask, key_mask = inputs.key, inputs.value, inputs.query_mask, inputs.key_mask
    if key is None and key_mask is None:
        key_mask = query_mask
    options = options._replace(
        relative_embeddings=inputs.relative_embeddings,
        documents=inputs.documents,
        seed=inputs.seed,
    )
    if options.shifted:
        # The query of a position stands for the key of the next one.
        options = options._replace(visible=_visible_after(inputs, key_mask, options.causal))
        value, key_mask = shift_left(value, 2), query_mask
    assignment = Assignment(
        inputs.centroids, num_probes, inputs.load_bias, inputs.scale, use_query_key_norm
    )
    assigned = assignment.assign(inputs.query, key, query_mask, key_mask)
    query, heads = assignment.scaled(assigned.query), inputs.query.shape[1]
    if use_query_key_norm and inputs.scale is None:
        # The bound of the logits of normalized vectors.
        options = options._replace(bound=query.shape[3] ** 0.5)
    if key is None:
        value = repeat_heads(value, heads)
        if key_mask is query_mask and num_probes == 1 and local is None:
            return attend_shared(query, assigned.key, value, assigned.query_clusters, options)
    keys = assigned.key, value, assigned.key_clusters
    if options.relative_embeddings is not None:
        # Each query head has its own table of embeddings, and so needs its own keys.
        keys = (repeat_heads(x, heads) for x in keys)
    key, value, key_clusters = keys
    # All queries of a key head are sorted together: [batch, key_heads, groups * probes, length].
    query_clusters = fold_heads(assigned.query_clusters, key.shape[1])
    if local is not None:
        return _attend_beyond(query, key, value, query_clusters, key_clusters, local, options)
    inclusive = options.causal and not options.shifted
    intervals = key_intervals(query_clusters, key_clusters, options, inclusive)
    return attend_separate(query, key, value, query_clusters, key_clusters, intervals, options)


def _visible_after(inputs, key_mask, causal):
    """Returns whether the next position may be seen, bool `[batch or 1, length]`; None for all."""
    if key_mask is None and not causal:
        # The last query is the key of no position. Causal attention never sees that position.
        key_mask = tf.ones([1, size(inputs.query, 2)], tf.bool)
    visible = None if key_mask is None else shift_left(tf.cast(key_mask, tf.bool), 1)
    if inputs.documents is None:
        return visible
    same = inputs.documents == shift_left(inputs.documents, 1)
    return same if visible is None else visible & same


def _attend_beyond(query, key, value, query_clusters, key_clusters, local, options):
    """Computes attention to the keys before the local window of each query, and after it."""

    def attend_side(window_size, after):
        side, clusters = options._replace(window_size=window_size), (query_clusters, key_clusters)
        intervals = intervals_around_blocks(*clusters, side, *local, after=after)
        return attend_separate(query, key, value, *clusters, intervals, side)

    window_size = options.window_size
    if options.causal:
        return attend_side(window_size, after=False)
    behind = attend_side(window_size - window_size // 2, after=True)
    if window_size == 1:
        return behind
    before = attend_side(window_size // 2, after=False)
    return merge_sets(before, behind, return_logsumexp=True)
