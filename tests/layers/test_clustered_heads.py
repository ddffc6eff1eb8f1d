import keras
import numpy as np
import pytest

from rt_keras.layers import ClusteredHeads, MultiHeadAttention
from rt_keras.ops import hamming_groups
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("top_k", [None, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_equation(top_k, shared):
    query, key, value = (
        checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    key = None if shared else key
    mask = checks.padding(2, 11)
    group = ClusteredHeads(2, 3, top_k, bits=5, iterations=2, seed=1, dtype="float64")
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, key, **options)
    groups = hamming_groups(query, group.projections, num_clusters=3, iterations=2, mask=mask)
    expected = reference.grouped(
        query, key, value, groups=groups.numpy(), num_clusters=3, top_k=top_k, **options
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_causal_by_mask():
    query, value, key = (checks.random(1, 2, 11, 6, seed=seed) for seed in range(3))
    group = ClusteredHeads(2, 3, 4, causal_by_mask=True)
    found = group(query, value, key, use_causal_mask=True)
    groups = hamming_groups(query, group.projections, num_clusters=3)
    options = {"groups": groups.numpy(), "num_clusters": 3, "top_k": 4, "causal": True}
    expected = reference.grouped(query, key, value, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert not group.cached_decoding


def test_projections():
    group = ClusteredHeads(2, 3, bits=5, seed=3, dtype="mixed_bfloat16")
    x = checks.random(1, 2, 9, 6)
    assert group(x, x, x).dtype == "bfloat16"
    assert group.projections.shape == (2, 5, 6) and group.projections.dtype == "float32"
    assert not group.trainable_variables
    same = ClusteredHeads(2, 3, bits=5, seed=3)
    same.build(x.shape, x.shape)
    np.testing.assert_array_equal(same.projections, group.projections)


def test_config():
    x = checks.random(1, 2, 9, 6)
    group = ClusteredHeads(2, 3, 4, bits=5, iterations=2, causal_by_mask=True, seed=1, name="heads")
    checks.config_makes_an_equal_layer(group, x, x, x)


def test_dropout_only_in_training():
    x = checks.random(1, 2, 9, 6)
    group = ClusteredHeads(2, 3, 4)
    options = {"dropout": 0.5, "seed": np.array([1, 2])}
    plain = group(x, x, x)
    np.testing.assert_array_equal(group(x, x, x, **options), plain)
    assert checks.largest_difference(group(x, x, x, **options, training=True), plain) > 1e-2


def test_every_weight_trains():
    x = checks.random(1, 2, 9, 6)
    group = ClusteredHeads(2, 3, 4)
    checks.trains_every_weight(group, x, x, x)


def test_fit_of_sequences_of_a_known_length():
    inputs = keras.Input((70, 6))
    layer = MultiHeadAttention([ClusteredHeads(2, 3, top_k=4)], 4)
    model = keras.Model(inputs, layer(inputs, inputs))
    model.compile("sgd", "mse")
    x = checks.random(5, 70, 6)
    assert np.isfinite(model.fit(x, x, batch_size=2, verbose=0).history["loss"])


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("top_k", [None, 4])
def test_empty_batches_and_sequences(top_k, static):
    group = ClusteredHeads(2, 3, top_k)
    checks.takes_empty_batches_and_sequences(group, static, use_causal_mask=False)


@pytest.mark.end_to_end
def test_a_model_with_other_heads_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((9, 6))
    layer = MultiHeadAttention([ClusteredHeads(1, 3), ClusteredHeads(1, 2, 4)], 4)
    model = keras.Model(inputs, layer(inputs, inputs))
    checks.saves_and_loads(model, checks.random(2, 9, 6), tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_clusters": 0}, "num_clusters must be a positive integer. Received: num_clusters=0"),
        ({"top_k": 1.5}, "top_k must be a positive integer. Received: top_k=1.5"),
        ({"bits": 0}, "bits must be a positive integer. Received: bits=0"),
        ({"causal_by_mask": True}, "causal_by_mask=True needs top_k"),
        ({"iterations": 0}, "iterations must be a positive integer. Received: iterations=0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ClusteredHeads(2, **options)


def test_bad_calls():
    x = checks.random(1, 2, 9, 6)
    with pytest.raises(ValueError, match="do not support use_causal_mask=True"):
        ClusteredHeads(2, 3)(x, x, x, use_causal_mask=True)
    with pytest.raises(ValueError, match="do not support an attention_mask"):
        ClusteredHeads(2, 3)(x, x, x, attention_mask=np.ones((1, 9, 9), bool))
