import keras
import numpy as np
import pytest

from rt_keras.layers import LSHHeads, MultiHeadAttention
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query, value = (checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(2))
    mask = checks.padding(2, 11)
    group = LSHHeads(2, 4, 3, num_rounds=2, seed=1, dtype="float64")
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, use_causal_mask=causal, **options)
    rotations = group.rotations.numpy()
    expected = reference.lsh(query, None, value, rotations, block_size=3, causal=causal, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_rotations():
    group = LSHHeads(2, 6, 3, num_rounds=4, seed=3, dtype="mixed_bfloat16")
    x = checks.random(1, 2, 9, 6)
    assert group(x, x).dtype == "bfloat16"
    assert group.rotations.shape == (2, 4, 6, 3) and group.rotations.dtype == "float32"
    assert not group.trainable_variables
    same = LSHHeads(2, 6, 3, num_rounds=4, seed=3)
    same.build(x.shape, x.shape)
    np.testing.assert_array_equal(same.rotations, group.rotations)


@pytest.mark.parametrize("causal", [False, True])
def test_config(causal):
    x = checks.random(1, 2, 9, 6)
    group = LSHHeads(2, 4, 3, num_rounds=2, seed=1, name="heads")
    checks.config_makes_an_equal_layer(group, x, x, use_causal_mask=causal)


def test_dropout_only_in_training():
    x, group = checks.random(1, 2, 9, 6), LSHHeads(2, 4, 3)
    options = {"dropout": 0.5, "seed": np.array([1, 2])}
    plain = group(x, x)
    np.testing.assert_array_equal(group(x, x, **options), plain)
    assert checks.largest_difference(group(x, x, **options, training=True), plain) > 1e-2


def test_every_weight_trains():
    x = checks.random(1, 2, 9, 6)
    group = LSHHeads(2, 2, 5)
    checks.trains_every_weight(group, x, x)


@pytest.mark.end_to_end
def test_a_model_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((9, 6))
    layer = MultiHeadAttention([LSHHeads(2, 4, 3, num_rounds=2)], 4)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    checks.saves_and_loads(model, checks.random(2, 9, 6), tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_buckets": 0}, "num_buckets must be a positive integer. Received: num_buckets=0"),
        ({"num_buckets": 5}, "num_buckets must be even. Received: num_buckets=5"),
        ({"block_size": 1.5}, "block_size must be a positive integer. Received: block_size=1.5"),
        ({"num_rounds": 0}, "num_rounds must be a positive integer. Received: num_rounds=0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        LSHHeads(2, **{"num_buckets": 4, "block_size": 3, **options})
