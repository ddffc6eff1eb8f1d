"""The attention of the authors' code as plain NumPy loops in float64, one query at a time.

Where that code follows the project's equations, the loops of `tests/ops/reference.py` are used.
"""

import itertools

import numpy as np

from tests.ops.reference import normalize, real


def local(
    query,
    key,
    value,
    *,
    block_size,
    look_back=1,
    grid=None,
    key_block_size=None,
    causal=False,
    query_mask=None,
    key_mask=None,
    **terms,
):
    """Local attention: a query without keys gets the mean of its window; queries have no mask.

    Relative distances assume that the block of queries is the last in its window.
    """
    key = query if key is None else key
    length, keys = query.shape[2], key.shape[2]
    key_block_size = key_block_size or block_size
    grid = grid or (-(-length // block_size),)
    reach = (look_back,) * len(grid) if isinstance(look_back, int) else look_back
    blocks = list(np.ndindex(*grid))
    steps = list(itertools.product(*(range(-count, count + 1) for count in reach)))
    steps = [step for step in steps if step[0] <= 0 or not causal]
    offset = len(steps) * key_block_size - block_size
    # One more key, of zeros, represents positions beyond the edges.
    key, value = (np.pad(x, [(0, 0), (0, 0), (0, 1), (0, 0)]) for x in (key, value))
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for b, h, i in np.ndindex(query.shape[:3]):
        window = []
        for step in steps:
            block = tuple(np.add(blocks[i // block_size], step))
            start = blocks.index(block) * key_block_size if block in blocks else keys
            window += [min(start + place, keys) for place in range(key_block_size)]
        pairs = [(j, offset + i % block_size - place) for place, j in enumerate(window)]
        seen = [
            (j, distance)
            for j, distance in pairs
            if j < keys and (j <= i or not causal) and real(key_mask, b, j)
        ]
        row = query, key, value, (b, h, i)
        output[b, h, i] = attend_row(*row, seen or pairs, equal=not seen, **terms)
    return output


def hashed(query, key, value, projections, *, num_buckets, window_size, **options):
    """Attention in buckets: the first positions in each, then the first outside."""

    def members(x, h, c, count):
        def bucket(j):
            return sum(2**i for i, p in enumerate(projections[h]) if p @ x[j] > 0)

        return sorted(range(len(x)), key=lambda j: (bucket(j) != c, j))[:count]

    return clustered(query, key, value, num_buckets, window_size, members, **options)


def clustered(
    query,
    key,
    value,
    num_clusters,
    window_size,
    members,
    *,
    block_size,
    causal=False,
    query_mask=None,
    key_mask=None,
    token_bias=None,
    **terms,
):
    """Attention in clusters, causal by rank in the cluster, of sequences padded to blocks."""
    length, keys = query.shape[2], value.shape[2]

    def filled(x):
        return np.pad(x, [(0, 0), (0, 0), (0, -x.shape[2] % block_size), (0, 0)])

    scale = query.shape[3] ** -0.5
    value = filled(value)
    key = normalize(filled(query * scale if key is None else key))
    query = normalize(filled(query * scale))
    if token_bias is not None:
        terms["token_bias"] = np.pad(token_bias, [(0, 0), (0, -keys % block_size)])
    total = np.zeros(query.shape[:3] + value.shape[3:])
    count = np.zeros(query.shape[:3] + (1,))
    for b, h, c in np.ndindex(*query.shape[:2], num_clusters):
        of_keys, of_queries = (
            sorted(members(x[b, h], h, c, min(window_size, x.shape[2]))) for x in (key, query)
        )
        for rank, i in enumerate(of_queries):
            pairs = [(j, rank - place) for place, j in enumerate(of_keys)]
            seen = [
                (j, distance)
                for j, distance in pairs
                if j < keys and real(key_mask, b, j) and (distance >= 0 or not causal)
            ]
            row = query, key, value, (b, h, i)
            found = attend_row(*row, seen or pairs, scale=1.0, equal=not seen, **terms)
            total[b, h, i] += found
            count[b, h, i] += 1
    return (total / (count + 0.01))[:, :, :length]


def attend_row(
    query,
    key,
    value,
    row,
    pairs,
    relative_embeddings=None,
    relative_values=None,
    token_bias=None,
    scale=None,
    equal=False,
):
    """sum_j softmax_j(q_i · (k_j + r_d) scale + t_j) (v_j + s_d) over pairs (j, d) of a row.

    With `equal` all weights are the same.
    """
    b, h, i = row
    scale = query.shape[3] ** -0.5 if scale is None else scale
    logits, values = [], []
    for j, distance in pairs:
        logit = query[b, h, i] @ (key[b, h, j] + vector(relative_embeddings, distance)) * scale
        logits.append(0.0 if equal else logit + (0.0 if token_bias is None else token_bias[b, j]))
        values.append(value[b, h, j] + vector(relative_values, distance))
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum() @ np.array(values)


def vector(table, distance):
    """Returns the term of a distance, shared by all heads; 0 if there is no table."""
    if table is None:
        return 0.0
    far = table.shape[1] // 2
    return table[0, min(max(distance, -far), far) + far]
