"""The equations of the ops for the loops of whole layers, which compose them one query at a time.

Most are the naive versions of the ops. Loops list for each query the positions that it attends to.
"""

import numpy as np

from rt_keras.ops.balanced import naive_balanced_attention
from rt_keras.ops.causal_clustered import naive_causal_clustered_attention
from rt_keras.ops.clustered import naive_clustered_attention
from rt_keras.ops.convolution import naive_convolution
from rt_keras.ops.gated_delta import naive_gated_delta_rule
from rt_keras.ops.lsh import naive_lsh_attention
from rt_keras.ops.naive import naive_normalize as normalize
from rt_keras.ops.random import naive_random_attention
from rt_keras.ops.routing_memory import naive_memory

balanced = naive_balanced_attention
causal_clustered = naive_causal_clustered_attention
convolved = naive_convolution
gated_delta = naive_gated_delta_rule
grouped = naive_clustered_attention
lsh = naive_lsh_attention
random = naive_random_attention


def remembered(*inputs, normalized=True, **options):
    return naive_memory(*inputs, use_query_key_norm=normalized, **options)


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
    routed_key="key",
    normalized=True,
    more=None,
):
    if key is None and key_mask is None:
        key_mask = query_mask
    shifts = routed_key == "previous_query"
    raw = query, query if key is None else key
    query, key = (normalize(x) for x in raw)
    masks = query_mask if shifts else key_mask, query_mask
    of_keys, of_queries = members_and_clusters(query, key, centroids, load_bias, *masks, num_probes)
    shift = int(shifts)

    def keys_of(b, h, i):
        keys = []
        for c in of_queries(b, h, i):
            members = [j + shift for j in of_keys(b, h, c)]
            if causal:
                keys += [j for j in members if j <= i][-window_size:]
            else:
                half = window_size // 2
                keys += [j for j in members if j < i + shift][::-1][:half]
                keys += [j for j in members if j >= i + shift][: window_size - half]
        if shifts:
            keys = [j for j in keys if j != i + 1 and j < key.shape[2] and real(key_mask, b, j)]
        return keys

    query, key = (query, key) if normalized else raw
    key = shifted(key) if shifts else key
    return attend_rows(query, key, value, keys_of, relative_embeddings, more)


def members_and_clusters(query, key, centroids, load_bias, key_mask, query_mask, num_probes):
    """Functions of (batch, head, cluster), its keys, and of (batch, head, query), its clusters."""
    load_bias = np.zeros(centroids.shape[:2]) if load_bias is None else load_bias

    def clusters(x):
        """The clusters of each position, the nearest first."""
        scores = np.einsum("bhnd,hcd->bhnc", x, centroids) + load_bias[:, None]
        return np.argsort(-scores, axis=-1, kind="stable")

    of_queries, of_keys = clusters(query), clusters(key)[..., 0]

    def members(b, h, c):
        return [j for j in range(key.shape[2]) if real(key_mask, b, j) and of_keys[b, h, j] == c]

    def clusters_of(b, h, i):
        return of_queries[b, h, i, :num_probes] if real(query_mask, b, i) else []

    return members, clusters_of


def shifted(x):
    """Shifts `x` right by one position, with zeros at the first."""
    return np.concatenate([np.zeros_like(x[:, :, :1]), x[:, :, :-1]], axis=2)


def softmax(logits):
    weights = np.exp(logits - np.max(logits))
    return weights / weights.sum()


def real(mask, b, i):
    return mask is None or bool(mask[b, i])


def attend_rows(query, key, value, keys_of, table, more=None):
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for row in np.ndindex(query.shape[:3]):
        output[row] = attend_row(query, key, value, row, keys_of(*row), table, more)
    return output


def attend_row(query, key, value, row, keys, table, more=None):
    """sum_j softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth) + t_j) v_j; 0 without keys.

    `keys` are a list, or a dictionary of the distances to use instead of i - j. `more` is a
    function of the row, whose logits and values join the others.
    """
    b, h, i = row
    distances = keys if isinstance(keys, dict) else {j: i - j for j in keys}
    logits, values = ([], []) if more is None else more(b, h, i)
    of_keys = [key[b, h, j] + relative(table, h, distance) for j, distance in distances.items()]
    logits = [*(query[b, h, i] @ k * query.shape[3] ** -0.5 for k in of_keys), *logits]
    values = [*value[b, h, list(distances)], *values]
    return softmax(np.array(logits)) @ np.array(values) if logits else np.zeros(value.shape[3])


def relative(table, head, distance):
    """The vector of a head for a distance; 0 if there is no table."""
    if table is None:
        return 0.0
    far = table.shape[1] // 2
    return table[head, min(max(distance, -far), far) + far]
