"""Inputs for the ops of the dialect."""

import numpy as np

from tests.ops import checks


def arrays(length, *, far=None, value_depth=5, token_bias=False, **options):
    """Returns inputs as in `tests/ops/checks.py`, with the dialect's tables and biases."""
    found = checks.arrays(length, value_depth=value_depth, **options)
    if far is not None:
        rng = np.random.default_rng(7)
        found["relative_embeddings"] = rng.normal(size=(1, 2 * far + 1, 6))
        found["relative_values"] = rng.normal(size=(1, 2 * far + 1, value_depth))
    if token_bias:
        batch, keys = (found["value"].shape[axis] for axis in (0, 2))
        found["token_bias"] = np.random.default_rng(8).normal(size=(batch, keys))
    return found
