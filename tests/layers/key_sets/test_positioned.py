import math

import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads
from tests.layers import checks

LENGTH, REACH = 30, 20


def sines(distance, width):
    rates = [10_000 ** (-2 * i / width) for i in range(width // 2)]
    return np.array([f(distance * rate) for f in (math.sin, math.cos) for rate in rates])


def logits_of(group, query, key, distance):
    """Computes the logit of one query and one key by the equations of the paper."""
    far = group.max_relative_distance
    distance = max(-far, min(far, distance))
    weights = {weight.name: weight.numpy() for weight in group.weights}

    def of_head(head):
        q, k = query[head], key[head]
        kernel = weights["relative_kernel"][head]
        relative = sines(distance, len(kernel)) @ kernel
        found = (q + weights["content_bias"][head]) @ k
        return (found + (q + weights["position_bias"][head]) @ relative) / math.sqrt(len(q))

    return np.array([of_head(head) for head in range(group.num_heads)])


def expected_output(group, query, key, value, seen):
    """Computes attention in a loop; `seen(i, j)` returns whether query i attends to key j."""
    batch, heads, length, _ = query.shape
    output = np.zeros_like(value)
    for row in range(batch):
        for i in range(length):
            keys = [j for j in range(length) if seen(i, j)]
            logits = [logits_of(group, query[row, :, i], key[row, :, j], i - j) for j in keys]
            weights = np.exp(logits - np.max(logits, axis=0))
            weights /= weights.sum(axis=0)
            output[row, :, i] = sum(w[:, None] * value[row, :, j] for w, j in zip(weights, keys))
    return output


def randomize(group):
    """Assigns random weights, since biases are initialized with zeros."""
    rng = np.random.default_rng(5)
    for weight in group.weights:
        weight.assign(rng.normal(size=weight.shape))


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query, key, value = (
        checks.random(1, 2, LENGTH, 4, seed=seed, dtype="float64") for seed in range(3)
    )
    options = {"max_relative_distance": REACH, "relative_positions": "sinusoidal"}
    for group, seen in (
        (FullHeads(2, dtype="float64", **options), lambda i, j: j <= i or not causal),
        (
            LocalHeads(2, 12, 1, dtype="float64", **options),
            lambda i, j: abs(i // 12 - j // 12) <= 1 and (j <= i or not causal),
        ),
    ):
        group(query, value, key)
        randomize(group)
        found = group(query, value, key, use_causal_mask=causal)
        expected = expected_output(group, query, key, value, seen)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: FullHeads(1, 3, relative_positions="rotary"), "one of learned, .*'rotary'"),
        (
            lambda: LocalHeads(1, 4, relative_positions="sinusoidal"),
            "needs a max_relative_distance",
        ),
        (
            lambda: LocalHeads(
                1, 4, max_relative_distance=2, grid=(2, 2), relative_positions="sinusoidal"
            ),
            "cannot be combined with grid",
        ),
        (lambda: FullHeads(1, memory_length=0), "memory_length must be an integer of at least 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
