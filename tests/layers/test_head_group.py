import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, HeadGroup, LocalHeads, RoutingHeads
from rt_keras.layers.head_group import copy_groups, positive_int
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing moves its centroids")

GROUPS = [
    lambda **kwargs: LocalHeads(2, 4, **kwargs),
    lambda **kwargs: FullHeads(2, **kwargs),
    lambda **kwargs: RoutingHeads(2, 3, 4, **kwargs),
    lambda **kwargs: RoutingHeads(2, 3, 4, assignment="balanced", **kwargs),
]


@pytest.mark.parametrize("make", GROUPS)
def test_shapes(make):
    query, value = checks.random(2, 2, 9, 6), checks.random(2, 2, 9, 5)
    group = make()
    assert group(query, value, query).shape == (2, 2, 9, 5)
    assert group.compute_output_shape(query.shape, value.shape) == (2, 2, 9, 5)


@pytest.mark.parametrize("make", GROUPS)
def test_relative_positions(make):
    x = checks.random(1, 2, 9, 6)
    plain, relative = make(), make(max_relative_distance=3)
    for group in (plain, relative):
        group.build(x.shape, x.shape)
    assert not plain.trainable_variables
    assert [weight.shape for weight in relative.trainable_variables] == [(2, 7, 6)]
    # With vectors of 0 they are as if they were not there.
    for weight, source in zip(relative.non_trainable_variables, plain.non_trainable_variables):
        weight.assign(source)
    assert checks.largest_difference(relative(x, x, x), plain(x, x, x)) > 1e-2
    relative.relative_embeddings.assign(np.zeros((2, 7, 6)))
    assert checks.largest_difference(relative(x, x, x), plain(x, x, x)) < 1e-6


@pytest.mark.parametrize("make", GROUPS)
def test_dropout_only_in_training(make):
    x = checks.random(1, 2, 9, 6)
    group = make()
    plain = group(x, x, x)
    kwargs = {"dropout": 0.5, "seed": np.array([1, 2])}
    np.testing.assert_array_equal(group(x, x, x, **kwargs), plain)
    dropped = group(x, x, x, **kwargs, training=True)
    assert checks.largest_difference(dropped, plain) > 1e-2


@pytest.mark.parametrize("make", GROUPS)
@pytest.mark.parametrize("causal", [False, True])
def test_config(make, causal):
    x = checks.random(1, 2, 9, 6)
    checks.config_makes_an_equal_layer(
        make(max_relative_distance=2, name="heads"), x, x, x, use_causal_mask=causal
    )


@pytest.mark.parametrize("make", [GROUPS[0], GROUPS[2], GROUPS[3]])
def test_no_mask_of_pairs(make):
    x = checks.random(1, 2, 9, 6)
    with pytest.raises(ValueError, match="cannot take an attention_mask of .batch, queries, keys."):
        make()(x, x, x, attention_mask=np.ones((1, 9, 9), bool))


@pytest.mark.parametrize("make", GROUPS)
def test_mixed_bfloat16(make):
    x = checks.random(1, 2, 9, 6)
    group = make(max_relative_distance=2, dtype="mixed_bfloat16")
    assert group(x, x, x).dtype == "bfloat16"
    assert group.relative_embeddings.dtype == "float32"


def test_copy_groups():
    x = checks.random(1, 2, 9, 6, dtype="float64")
    groups = [LocalHeads(2, 4, look_back=2), RoutingHeads(2, 3, 4, num_probes=2)]
    for group in groups:
        group(x, x, x)
    copies = copy_groups(groups, "float64")
    for group, copy in zip(groups, copies):
        assert copy is not group and not copy.built
        assert copy(x, x, x).dtype == "float64"
        expected = {**group.get_config(), "dtype": copy.get_config()["dtype"]}
        assert copy.get_config() == expected


def test_a_group_has_to_say_how_it_attends():
    x = keras.random.normal([1, 2, 9, 6])
    with pytest.raises(NotImplementedError):
        HeadGroup(2)(x, x, x)


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "3", None, True])
def test_positive_int(value):
    assert positive_int("size", 3) == 3
    with pytest.raises(
        ValueError, match=f"size must be a positive integer. Received: size={value!r}"
    ):
        positive_int("size", value)


@pytest.mark.parametrize("name", ["num_heads", "max_relative_distance"])
def test_bad_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer. Received: {name}=0"):
        FullHeads(**{"num_heads": 2, name: 0})
