"""The equations of the ops as plain NumPy loops: one query at a time, all in float64.

Every function takes the arguments of the op of the same name, and lists for each query the
positions that it attends to.
"""

import itertools

import numpy as np


def normalize(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)


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


def convolved(x, kernel, mask=None):
    """The sum of each real vector and the `width - 1` before it, times its row of the kernel."""
    output = np.zeros_like(x)
    for b, h, i, shift in np.ndindex(*x.shape[:3], kernel.shape[1]):
        if i >= shift and real(mask, b, i - shift):
            output[b, h, i] += kernel[h, shift] * x[b, h, i - shift]
    return output


def balanced(query, key, value, centroids, *, window_size, **options):
    members = balanced_members(centroids)
    return clustered(query, key, value, centroids.shape[1], window_size, members, **options)


def balanced_members(centroids):
    def members(x, h, c, count, later):
        """The positions that score highest, the first of equal ones."""
        best = np.argsort(-(x @ centroids[h, c]), kind="stable")
        return sorted(best, key=lambda j: j in later)[:count]

    return members


def random(query, key, value, *, routing_seed, num_clusters, window_size, **options):
    def members(x, h, c, count, later):
        """The positions with the highest random numbers."""
        best = sorted(range(len(x)), key=lambda j: -drawn(*routing_seed[h], c, j))
        return sorted(best, key=lambda j: j in later)[:count]

    return clustered(query, key, value, num_clusters, window_size, members, **options)


def drawn(*parts):
    """The random number of (seed, seed, cluster, position), from mixing their bits."""
    mixed = 0
    for part in parts:
        mixed = ((mixed ^ int(part)) + 0x9E3779B9) % 2**32
        mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
        mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % 2**32
        mixed ^= mixed >> 16
    return mixed >> 8


def clustered(
    query,
    key,
    value,
    num_clusters,
    window_size,
    members,
    *,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
):
    """Attention in clusters whose members are `members(x, head, cluster, count, later)`.

    x are the normalized vectors of a sequence, and `later` the positions taken only once there
    are no others.
    """
    if key is None and key_mask is None:
        key_mask = query_mask
    query, key = normalize(query), normalize(query if key is None else key)

    def real_members(x, mask, b, h, c):
        length = x.shape[2]
        padding = [j for j in range(length) if not real(mask, b, j)]
        chosen = members(x[b, h], h, c, min(window_size, length), padding)
        return [j for j in chosen if j not in padding]

    total = np.zeros(query.shape[:3] + value.shape[3:])
    count = np.zeros(query.shape[:3] + (1,))
    for b, h, c in np.ndindex(*query.shape[:2], num_clusters):
        keys = real_members(key, key_mask, b, h, c)
        for i in real_members(query, query_mask, b, h, c):
            seen = [j for j in keys if j <= i or not causal]
            total[b, h, i] += attend_row(query, key, value, (b, h, i), seen, relative_embeddings)
            count[b, h, i] += 1
    return total / np.maximum(count, 1)


def grouped(
    query,
    key,
    value,
    *,
    groups,
    num_clusters,
    top_k=None,
    causal=False,
    query_mask=None,
    key_mask=None,
):
    """Attention of groups of queries by their mean; with `top_k` of each query to its best keys."""
    if key is None and key_mask is None:
        key_mask = query_mask
    key = query if key is None else key
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for b, h, c in np.ndindex(*query.shape[:2], num_clusters):
        seen = [j for j in range(key.shape[2]) if real(key_mask, b, j)]
        members = [i for i in range(query.shape[2]) if real(query_mask, b, i)]
        members = [i for i in members if groups[b, h, i] == c]
        if not seen or not members:
            continue
        mean = sum(query[b, h, i] for i in members) / len(members)
        weights = dict(zip(seen, attention_weights(mean, key[b, h, seen])))
        best = sorted(seen, key=lambda j: -weights[j])[: top_k or 0]
        for i in members:
            if causal:
                best_before = [j for j in best if j <= i]
                if best_before:
                    own = attention_weights(query[b, h, i], key[b, h, best_before])
                    output[b, h, i] = own @ value[b, h, best_before]
                continue
            own = dict(weights)
            if best:
                mass = sum(weights[j] for j in best)
                of_best = attention_weights(query[b, h, i], key[b, h, best])
                own.update(zip(best, mass * of_best))
            output[b, h, i] = sum(own[j] * value[b, h, j] for j in seen)
    return output


def lsh(query, key, value, rotations, *, block_size, causal=False, query_mask=None, key_mask=None):
    """Attention to positions that share a bucket, in the same or the previous chunk of a round."""
    length = query.shape[2]
    keys = query / np.linalg.norm(query, axis=-1, keepdims=True)
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for b, h in np.ndindex(query.shape[:2]):
        places = [i for i in range(length) if real(query_mask, b, i)]
        seen = {i: set() for i in places}
        for rotation in rotations[h]:
            rotated = query[b, h] @ rotation
            bucket = np.concatenate([rotated, -rotated], axis=-1).argmax(-1)
            order = sorted(places, key=lambda i: (bucket[i], i))
            chunk = {i: place // block_size for place, i in enumerate(order)}
            for i, j in itertools.product(places, places):
                if bucket[i] == bucket[j] and chunk[i] - chunk[j] in (0, 1):
                    seen[i].add(j)
        for i in places:
            found = [j for j in sorted(seen[i]) if real(key_mask, b, j) and (j <= i or not causal)]
            found = [j for j in found if j != i] or found
            if found:
                weights = attention_weights(query[b, h, i], keys[b, h, found])
                output[b, h, i] = weights @ value[b, h, found]
    return output


def softmax(logits):
    weights = np.exp(logits - np.max(logits))
    return weights / weights.sum()


def attention_weights(query, keys):
    return softmax(keys @ query * len(query) ** -0.5)


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


def causal_clustered(
    query, key, value, centroids, *, block_size, load_bias=None, query_mask=None, key_mask=None
):
    """Causal attention: exact to a query's own block, through its centroid to earlier ones."""
    if key is None and key_mask is None:
        key_mask = query_mask
    q, k = normalize(query), normalize(query if key is None else key)
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for b, h, i in np.ndindex(*query.shape[:3]):
        seen = [j for j in range(i + 1) if real(key_mask, b, j)]
        if not seen or not real(query_mask, b, i):
            continue
        scores = centroids[h] @ q[b, h, i] + (0 if load_bias is None else load_bias[h])
        stand_in = centroids[h, np.argmax(scores)]
        logits = []
        for j in seen:
            by = q[b, h, i] if j // block_size == i // block_size else stand_in
            logits.append(by @ k[b, h, j] / np.sqrt(query.shape[3]))
        output[b, h, i] = softmax(logits) @ value[b, h, seen]
    return output


def gated_delta(
    query, key, value, *, log_decay, beta, query_mask=None, key_mask=None, initial_state=None
):
    """The recurrence, one position after the other."""
    output = np.zeros(
        query.shape[:3] + value.shape[3:], np.result_type(query, key, value, log_decay, beta)
    )
    identity = np.eye(query.shape[3])
    for b, h in np.ndindex(*query.shape[:2]):
        state = np.zeros((query.shape[3], value.shape[3]))
        if initial_state is not None:
            state = initial_state[b, h]
        for i in range(query.shape[2]):
            k, v = key[b, h, i], value[b, h, i]
            if real(key_mask, b, i):
                erased = identity - beta[b, h, i] * np.outer(k, k)
                state = np.exp(log_decay[b, h, i]) * erased @ state
                state = state + beta[b, h, i] * np.outer(k, v)
            if real(query_mask, b, i):
                output[b, h, i] = state.T @ query[b, h, i]
    return output


def remembered(
    query,
    key,
    value,
    centroids,
    load_bias,
    scale,
    *,
    window_size,
    memory_length,
    memory_keys,
    block_size,
    eviction,
    num_probes=1,
    normalized=True,
    first=0,
    numbers_after=None,
):
    """Attention of the queries of one row and head to the memories of their clusters.

    Args:
        query, key, value: `[length, ...]`; key i is the routed key of position i, which the
            positions before `first` do not have.
        numbers_after: dictionary of the numbers that "random" keeps, `[clusters, ...]`, by the
            last position of a block.

    Returns:
        For each query the pair of logits and values; and the memories at the end.
    """
    raw = query, key
    query, key = (normalize(x) for x in raw)
    of_query, of_key = (x @ centroids.T + load_bias for x in (query, key))
    of_query = np.argsort(-of_query, axis=1, kind="stable")[:, :num_probes]
    of_key = np.argmax(of_key, axis=1)
    query, key = (query, key) if normalized else raw
    memories, counts, pending, found = [[] for _ in centroids], [0] * len(centroids), [], []
    for i, clusters in enumerate(of_query):
        if i >= first:
            own = {"key": key[i], "value": value[i], "number": counts[of_key[i]]}
            pending.append((of_key[i], {**own, "used": 0, "asked": 0}))
            counts[of_key[i]] += 1
        logits, members = [], []
        for c in clusters:
            seen = [m for m in memories[c] if m["number"] < counts[c] - window_size]
            of_seen = [query[i] @ m["key"] * scale / len(query[i]) ** 0.5 for m in seen]
            best = np.argsort(of_seen)[::-1][:memory_keys]
            logits += [of_seen[j] for j in best]
            members += [seen[j] for j in best]
            for member in memories[c]:
                member["asked"] += 1
        for member, weight in zip(members, softmax(logits) if logits else []):
            member["used"] += weight
        found.append((logits, [member["value"] for member in members]))
        if i % block_size == block_size - 1:
            for c, memory in enumerate(memories):
                arrived = [member for of, member in pending if of == c]
                numbers = None if numbers_after is None else numbers_after[i][c]
                memories[c] = _after_block(memory, arrived, memory_length, eviction, numbers)
            pending = []
    return found, memories


def _after_block(held, arrived, most, eviction, numbers):
    """The members of a cluster, once those of a block have joined them."""
    kept = held + arrived
    if eviction == "merged" and len(kept) > most:
        return _merged(kept, most)
    while len(kept) > most:
        held = _without_one(held, eviction, numbers)
        kept = held + arrived
    return kept


def _without_one(members, eviction, numbers):
    if eviction == "oldest":
        return members[1:]
    if eviction == "random":
        return [member for member in members if member["number"] in numbers]
    rates = [m["used"] / m["asked"] if m["asked"] else np.inf for m in members]
    return [member for i, member in enumerate(members) if i != int(np.argmin(rates))]


def _merged(members, most):
    """Averages the oldest members in pairs, until there are few enough."""
    gone, found = len(members) - most, []
    for first, second in zip(members[: 2 * gone : 2], members[1 : 2 * gone : 2]):
        mean = {name: (first[name] + second[name]) / 2 for name in ("key", "value")}
        found.append({**second, **mean})
    return found + members[2 * gone :]
