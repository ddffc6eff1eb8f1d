"""The equations of the ops as plain NumPy loops: one query at a time, all in float64.

Every function takes what the op of the same name takes, and lists for each query the positions
that it attends to.
"""

import numpy as np


def normalize(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def full(
    query,
    key,
    value,
    *,
    causal=False,
    query_mask=None,
    key_mask=None,
    attention_mask=None,
    relative_embeddings=None,
):
    key = query if key is None else key

    def keys_of(b, h, i):
        return [
            j
            for j in range(key.shape[2])
            if (j <= i or not causal)
            and real(query_mask, b, i)
            and real(key_mask, b, j)
            and (attention_mask is None or attention_mask[b, i, j])
        ]

    return attend_rows(query, key, value, keys_of, relative_embeddings)


def local(
    query,
    key,
    value,
    *,
    block_size,
    look_back=1,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
):
    key = query if key is None else key

    def keys_of(b, h, i):
        ahead = 0 if causal else look_back
        return [
            j
            for j in range(key.shape[2])
            if -look_back <= j // block_size - i // block_size <= ahead
            and (j <= i or not causal)
            and real(query_mask, b, i)
            and real(key_mask, b, j)
        ]

    return attend_rows(query, key, value, keys_of, relative_embeddings)


def nearest(
    query,
    key,
    value,
    centroids,
    *,
    window_size,
    causal=False,
    num_probes=1,
    load_bias=None,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
):
    if key is None and key_mask is None:
        key_mask = query_mask
    query, key = normalize(query), normalize(query if key is None else key)
    load_bias = np.zeros(centroids.shape[:2]) if load_bias is None else load_bias

    def clusters(x):
        """The clusters of each position, the nearest first."""
        scores = np.einsum("bhnd,hcd->bhnc", x, centroids) + load_bias[:, None]
        return np.argsort(-scores, axis=-1, kind="stable")

    of_queries, of_keys = clusters(query), clusters(key)[..., 0]

    def keys_of(b, h, i):
        if not real(query_mask, b, i):
            return []
        keys = []
        for c in of_queries[b, h, i, :num_probes]:
            members = [
                j for j in range(key.shape[2]) if real(key_mask, b, j) and of_keys[b, h, j] == c
            ]
            if causal:
                keys += [j for j in members if j <= i][-window_size:]
            else:
                half = window_size // 2
                keys += [j for j in members if j < i][::-1][:half]
                keys += [j for j in members if j >= i][: window_size - half]
        return keys

    return attend_rows(query, key, value, keys_of, relative_embeddings)


def balanced(
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
):
    if key is None and key_mask is None:
        key_mask = query_mask
    query, key = normalize(query), normalize(query if key is None else key)

    def members(x, mask, b, h, c):
        """The real positions that score highest."""
        best = np.argsort(-(x[b, h] @ centroids[h, c]), kind="stable")
        return [j for j in best if real(mask, b, j)][:window_size]

    total = np.zeros(query.shape[:3] + value.shape[3:])
    count = np.zeros(query.shape[:3] + (1,))
    for b, h, c in np.ndindex(query.shape[0], *centroids.shape[:2]):
        keys = members(key, key_mask, b, h, c)
        for i in members(query, query_mask, b, h, c):
            seen = [j for j in keys if j <= i or not causal]
            total[b, h, i] += attend_row(query, key, value, (b, h, i), seen, relative_embeddings)
            count[b, h, i] += 1
    return total / np.maximum(count, 1)


def real(mask, b, i):
    return mask is None or bool(mask[b, i])


def attend_rows(query, key, value, keys_of, relative_embeddings):
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for row in np.ndindex(query.shape[:3]):
        output[row] = attend_row(query, key, value, row, keys_of(*row), relative_embeddings)
    return output


def attend_row(query, key, value, row, keys, relative_embeddings):
    """sum_j softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth)) v_j; 0 without keys."""
    b, h, i = row
    if not keys:
        return np.zeros(value.shape[3])
    logits = []
    for j in keys:
        vector = key[b, h, j]
        if relative_embeddings is not None:
            far = relative_embeddings.shape[1] // 2
            vector = vector + relative_embeddings[h, min(max(i - j, -far), far) + far]
        logits.append(query[b, h, i] @ vector / np.sqrt(query.shape[3]))
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum() @ value[b, h, keys]
