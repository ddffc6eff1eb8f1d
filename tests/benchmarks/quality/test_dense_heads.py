import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.quality import dense_heads
from rt_keras.benchmarks.quality.dense_heads import DenseHeads
from rt_keras.layers import LocalRoutingHeads
from tests.layers import checks
from tests.ops import reference

SIZES = {"block_size": 2, "num_clusters": 3, "window_size": 3}


def vectors(length=21):
    return [checks.random(2, 2, length, 6, seed=seed) for seed in range(3)]


def seen(selection, routed_key="key", length=21, seed=3):
    """A mask of the keys that each query sees, `[batch, heads, queries, keys]`."""
    query, key, _ = vectors(length)
    identity = np.broadcast_to(np.eye(length, dtype="float32"), (2, 2, length, length))
    options = {"routed_key": routed_key, "kernel_size": 1, "selection": selection, "seed": seed}
    group = DenseHeads(2, **SIZES, **options)
    return np.array(group(query, identity, key, use_causal_mask=True)) > 0


@pytest.mark.parametrize(
    "options, padded",
    [
        ({}, True),
        ({"share_qk": True}, False),
        ({"routed_key": "key", "max_relative_distance": 3, "kernel_size": 1}, True),
    ],
    ids=str,
)
def test_nearest_is_the_fast_layer(options, padded, monkeypatch):
    monkeypatch.setattr(dense_heads, "QUERIES_AT_ONCE", 2)
    query, key, value = (tf.constant(x, "float64") for x in vectors())
    mask = checks.padding(2, 21) if padded else None
    fast = LocalRoutingHeads(2, **SIZES, **options, dtype="float64")
    dense = DenseHeads(2, **SIZES, **options, dtype="float64")
    for group in (fast, dense):
        group.build(query.shape)
    for weight, source in zip(dense.weights, fast.weights, strict=True):
        source.assign_add(0.1 * checks.random(*source.shape))
        weight.assign(source)
    masks = {"query_mask": mask, "key_mask": mask, "use_causal_mask": True}
    outputs, gradients = [], []
    for group in (fast, dense):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            outputs.append(group(query, value, key, **masks))
        sources = [query, key, value, *(weight.value for weight in group.trainable_weights)]
        upstream = checks.random(2, 2, 21, 6, seed=5, dtype="float64")
        gradients.append(tape.gradient(outputs[-1], sources, upstream, "zero"))
    assert checks.largest_difference(*outputs) < 1e-12
    for expected, found in zip(*gradients, strict=True):
        assert checks.largest_difference(found, expected) < 1e-12


def test_the_window_and_as_many_keys_as_there_are():
    for selection in ("random", "best", "all"):
        found = seen(selection)
        for i in range(21):
            start = max(i // 2 - 1, 0) * 2
            assert found[:, :, i, start : i + 1].all() and not found[:, :, i, i + 1 :].any()
            count = start if selection == "all" else min(start, 3)
            assert (found[:, :, i, :start].sum(axis=-1) == count).all()
    assert np.array_equal(seen("random"), seen("random"))
    assert not np.array_equal(seen("random"), seen("random", seed=4))


def test_the_best_keys_are_those_whose_position_before_asked_alike():
    query, _, _ = vectors()
    found, normalized = seen("best", "previous_query"), reference.normalize(query)
    for b, h, i in np.ndindex(2, 2, 21):
        start = max(i // 2 - 1, 0) * 2
        logits = {j: normalized[b, h, i] @ normalized[b, h, j - 1] for j in range(1, i + 1)}
        best = sorted(logits, key=logits.get)[-3:]
        assert set(np.flatnonzero(found[b, h, i])) == {*range(start, i + 1), *best}
