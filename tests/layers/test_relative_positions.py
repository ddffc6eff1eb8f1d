import math

import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.ops.full import naive_full_attention
from rt_keras.ops.local.windows import naive_local_attention
from tests.contract.kinds import move_weights
from tests.layers import checks

LENGTH, REACH = 30, 20


def sines(distance, width):
    rates = [10_000 ** (-2 * i / width) for i in range(width // 2)]
    return np.array([f(distance * rate) for f in (math.sin, math.cos) for rate in rates])


def loop(group, query, key, value, equation, **options):
    """The equation: logit_ij = ((query_i + u) · key_j + (query_i + v) · W R_(i - j)) / sqrt(depth).

    That of learned distances has these logits for vectors of twice as many features.
    """
    weights = {weight.name: weight.numpy() for weight in group.weights}
    u, v = (weights[f"{name}_bias"][:, None] for name in ("content", "position"))
    of_distances = [sines(d, weights["relative_kernel"].shape[1]) for d in range(-REACH, REACH + 1)]
    table = np.array(of_distances) @ weights["relative_kernel"]
    return equation(
        np.sqrt(2) * np.concatenate([query + u, query + v], axis=3),
        np.concatenate([key, 0 * key], axis=3),
        value,
        relative_embeddings=np.concatenate([0 * table, table], axis=2),
        **options,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query, key, value = (
        checks.random(1, 2, LENGTH, 4, seed=seed, dtype="float64") for seed in range(3)
    )
    options = {"max_relative_distance": REACH, "relative_positions": "sinusoidal"}
    for group, equation, sizes in (
        (FullHeads(2, dtype="float64", **options), naive_full_attention, {}),
        (
            LocalHeads(2, 12, 1, dtype="float64", **options),
            naive_local_attention,
            {"block_size": 12},
        ),
    ):
        group.build(query.shape, value.shape)
        move_weights(group)
        found = group(query, value, key, use_causal_mask=causal)
        expected = loop(group, query, key, value, equation, causal=causal, **sizes)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
