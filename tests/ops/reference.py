"""Parts of loops over the queries of attention."""

import numpy as np


def softmax(logits):
    weights = np.exp(logits - np.max(logits))
    return weights / weights.sum()


def real(mask, b, i):
    return mask is None or bool(mask[b, i])


def relative(table, head, distance):
    """The vector of a head for a distance; 0 if there is no table."""
    if table is None:
        return 0.0
    far = table.shape[1] // 2
    return table[head, min(max(distance, -far), far) + far]
