import math

import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads, MultiHeadAttention
from rt_keras.layers.key_sets.positioned import RELATIVE_POSITIONS
from tests.layers import checks

LENGTH, REACH = 30, 20


def bucket(distance, furthest):
    """Computes the bucket of a distance by the definition of T5."""
    near = abs(distance)
    if near >= 16:
        near = min(16 + int(math.log(near / 16) / math.log(furthest / 16) * 16), 31)
    return near + 32 * (distance < 0)


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
        if group.relative_positions == "bucketed":
            found = q @ k / math.sqrt(len(q))
            return found + weights["bucket_bias"][head, bucket(distance, far)]
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


@pytest.mark.parametrize("relative_positions", ["sinusoidal", "bucketed"])
@pytest.mark.parametrize("causal", [False, True])
def test_equation(relative_positions, causal):
    query, key, value = (
        checks.random(1, 2, LENGTH, 4, seed=seed, dtype="float64") for seed in range(3)
    )
    options = {"max_relative_distance": REACH, "relative_positions": relative_positions}
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


@pytest.mark.parametrize("relative_positions", RELATIVE_POSITIONS)
@pytest.mark.parametrize(
    "make",
    [
        lambda **options: FullHeads(2, **options),
        lambda **options: FullHeads(2, memory_length=6, **options),
        lambda **options: LocalHeads(2, 4, sliding_window=3, **options),
    ],
    ids=["full", "memory", "sliding"],
)
def test_decoding_and_configuration(make, relative_positions):
    group = make(max_relative_distance=3, relative_positions=relative_positions)
    layer, x = MultiHeadAttention([group]), checks.random(2, 15, 8)
    layer(x, x, use_causal_mask=True)
    randomize(group)
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 7), expected, rtol=0, atol=1e-5)
    heads = checks.random(1, 2, 9, 4)
    checks.config_makes_an_equal_layer(group, heads, heads, heads, use_causal_mask=True)
    checks.trains_every_weight(group, heads, heads, heads, use_causal_mask=True)


def in_chunks(layer, x, length):
    """Returns the outputs of a layer that reads a sequence in chunks."""
    cache, outputs = layer.new_cache(len(x), 10**6), []
    for start in range(0, x.shape[1], length):
        output, cache = layer.call_with_cache(x[:, start : start + length], cache, start)
        outputs.append(output)
    return np.concatenate(outputs, axis=1)


def test_transformer_xl():
    """Compares chunks of 512 with a memory of 512 to a loop over queries."""
    count = 512
    group = FullHeads(
        1,
        max_relative_distance=count - 1,
        memory_length=count,
        relative_positions="sinusoidal",
    )
    layer = MultiHeadAttention([group], use_bias=False)
    x = checks.random(1, 3 * count, 8)
    layer(x[:, :4], x[:, :4], use_causal_mask=True)
    randomize(group)
    found = in_chunks(layer, x, count)
    dense = (layer.query_dense, layer.key_dense, layer.value_dense)
    query, key, value = (np.float64(layer_(x)[0]) for layer_ in dense)
    weights = {weight.name: np.float64(weight.numpy()[0]) for weight in group.weights}
    relative = np.array([sines(d, len(weights["relative_kernel"])) for d in range(count)])
    relative = relative @ weights["relative_kernel"]
    expected = []
    for i in range(len(query)):
        first = max(0, i - count + 1)
        keys, distances = key[first : i + 1], i - np.arange(first, i + 1)
        logits = keys @ (query[i] + weights["content_bias"])
        logits += relative[distances] @ (query[i] + weights["position_bias"])
        share = np.exp((logits - logits.max()) / math.sqrt(8))
        expected.append(share @ value[first : i + 1] / share.sum())
    expected = layer.output_dense(np.float32(expected)[None])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_query_sees_exactly_its_memory():
    layer, x = MultiHeadAttention([FullHeads(1, memory_length=6)]), checks.random(1, 20, 4)
    layer.build(x.shape, x.shape)
    expected = in_chunks(layer, x, 5)
    changed = x.copy()
    changed[:, 7] += 1
    differ = np.abs(in_chunks(layer, changed, 5) - expected).max(axis=(0, 2)) > 1e-6
    assert np.flatnonzero(differ).tolist() == list(range(7, 13))


def test_causal_mask_is_required():
    x = checks.random(1, 1, 4, 2)
    with pytest.raises(ValueError, match="memory_length=3 need use_causal_mask=True"):
        FullHeads(1, memory_length=3)(x, x, x)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: FullHeads(1, 3, relative_positions="rotary"), "must be one of .*'rotary'"),
        (lambda: LocalHeads(1, 4, relative_positions="bucketed"), "needs a max_relative_distance"),
        (
            lambda: LocalHeads(
                1, 4, max_relative_distance=2, grid=(2, 2), relative_positions="bucketed"
            ),
            "cannot be combined with grid",
        ),
        (lambda: FullHeads(1, memory_length=0), "memory_length must be an integer of at least 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
