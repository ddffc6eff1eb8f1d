"""Inputs for the ops of the dialect."""

import numpy as np

from tests.ops import checks


def arrays(length, *, far=None, value_depth=5, **options):
    """Random inputs as those of `tests/ops/checks.py`, with the tables that heads share."""
    found = checks.arrays(length, value_depth=value_depth, **options)
    if far is not None:
        rng = np.random.default_rng(7)
        found["relative_embeddings"] = rng.normal(size=(1, 2 * far + 1, 6))
        found["relative_values"] = rng.normal(size=(1, 2 * far + 1, value_depth))
    return found
