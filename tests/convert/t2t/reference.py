"""The attention of the authors' code as plain NumPy loops in float64, one query at a time.

Where that code follows the project's equations, the loops of `tests/ops/reference.py` are used.
"""

import itertools

import numpy as np

from tests.ops.reference import real, relative, softmax


def windows(length, keys, sizes, look_back, grid, causal):
    """The steps from a block to those in its window, and a function of a query, its window's keys.

    `sizes` are those of blocks of queries and of keys; `keys` stands for places beyond the edges.
    """
    grid = grid or (-(-length // sizes[0]),)
    reach = (look_back,) * len(grid) if isinstance(look_back, int) else look_back
    blocks = list(np.ndindex(*grid))
    steps = list(itertools.product(*(range(-count, count + 1) for count in reach)))
    steps = [step for step in steps if step[0] <= 0 or not causal]

    def window_of(i):
        seen = (tuple(np.add(blocks[i // sizes[0]], step)) for step in steps)
        starts = (blocks.index(x) * sizes[1] if x in blocks else keys for x in seen)
        return [min(start + place, keys) for start in starts for place in range(sizes[1])]

    return steps, window_of


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
    keys, sizes = key.shape[2], (block_size, key_block_size or block_size)
    steps, window_of = windows(query.shape[2], keys, sizes, look_back, grid, causal)
    offset = len(steps) * sizes[1] - block_size
    # One more key, of zeros, represents positions beyond the edges.
    key, value = (np.pad(x, [(0, 0), (0, 0), (0, 1), (0, 0)]) for x in (key, value))
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for b, h, i in np.ndindex(query.shape[:3]):
        pairs = [(j, offset + i % block_size - place) for place, j in enumerate(window_of(i))]
        seen = [
            (j, distance)
            for j, distance in pairs
            if j < keys and (j <= i or not causal) and real(key_mask, b, j)
        ]
        row = query, key, value, (b, h, i)
        output[b, h, i] = attend_row(*row, seen or pairs, not seen, **terms)
    return output


def attend_row(
    query, key, value, row, pairs, equal, relative_embeddings, relative_values, token_bias
):
    """sum_j softmax_j(q_i · (k_j + r_d) scale + t_j) (v_j + s_d) over pairs (j, d) of a row.

    With `equal` all weights are the same. All heads share one table of distances.
    """
    b, h, i = row
    logits = [
        query[b, h, i] @ (key[b, h, j] + relative(relative_embeddings, 0, distance))
        + (0.0 if equal else token_bias[b, j] * query.shape[3] ** 0.5)
        for j, distance in pairs
    ]
    values = [value[b, h, j] + relative(relative_values, 0, distance) for j, distance in pairs]
    weights = softmax(np.array(logits) * (0 if equal else query.shape[3] ** -0.5))
    return weights @ np.array(values)
