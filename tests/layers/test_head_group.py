import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    CausalClusteredHeads,
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    LSHHeads,
    MultiHeadAttention,
    RoutingHeads,
    StridedHeads,
)
from rt_keras.layers.head_group import copy_groups
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.mark.parametrize("kind", checks.EVERY_KIND)
def test_dropout_only_in_training(kind):
    x, group = checks.random(1, 2, 9, 6), checks.EVERY_KIND[kind]()
    options = {"use_causal_mask": True, **checks.gates_for(group, x)}
    vectors = x, x, None if group.share_qk else x
    plain = group(*vectors, **options)
    options |= {"dropout": 0.5, "seed": np.array([1, 2])}
    np.testing.assert_array_equal(group(*vectors, **options), plain)
    dropped = group(*vectors, **options, training=True)
    # A recurrent state has no attention weights.
    assert (checks.largest_difference(dropped, plain) > 1e-2) == (kind != "gated-delta")


def test_saving(tmp_path):
    groups = [
        LocalHeads(2, 2, look_back=(1, 0), grid=(2, 2), key_block_size=2),
        RoutingHeads(2, 4, 4, assignment="balanced", share_qk=True, seed=1),
        StridedHeads(2, 3, max_relative_distance=2),
        LocalRoutingHeads(2, 2, 3, 4, kernel_size=3),
    ]
    inputs = keras.Input((8, 6))
    layer = MultiHeadAttention(groups, 2)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    for weight in layer.trainable_variables:
        weight.assign(weight + 0.1)
    x = checks.random(2, 8, 6)
    expected = model(x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert checks.largest_difference(loaded(x), expected) < 1e-6
    copies = next(x for x in loaded.layers if isinstance(x, MultiHeadAttention)).head_groups
    assert [copy.get_config() for copy in copies] == [group.get_config() for group in groups]


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


@pytest.mark.parametrize("name", ["num_heads", "max_relative_distance"])
def test_bad_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must be a.* integer.*. Received: {name}=0"):
        FullHeads(**{"num_heads": 2, name: 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoutingHeads(2, 3, 4, share_qk=True),
        lambda: RoutingHeads(2, 3, 4, assignment="balanced", share_qk=True),
        lambda: LSHHeads(2, 4, 3),
    ],
)
def test_queries_that_are_also_keys_need_as_many_values(make):
    group = make()
    name = type(group).__name__
    query, value = checks.random(2, 2, 9, 4), checks.random(2, 2, 6, 4)
    message = f"{name} with share_qk=True need as many values as queries"
    with pytest.raises(ValueError, match=f"{message}.* length 9, value of length 6"):
        group(query, value)
    unknown = tf.TensorSpec([None, 2, None, 4])
    attend = tf.function(group, input_signature=[unknown] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        attend(query, value)
    np.testing.assert_allclose(attend(query, query), group(query, query), atol=1e-6)


@pytest.mark.parametrize(
    "make, option",
    [
        (lambda **options: LSHHeads(2, 4, 4, **options), {"max_relative_distance": 3}),
        (lambda **options: CausalClusteredHeads(2, 3, **options), {"share_qk": True}),
    ],
)
def test_options_that_a_kind_does_not_have_are_refused(make, option):
    ((name, value),) = option.items()
    kind = type(make()).__name__
    with pytest.raises(ValueError, match=f"{kind}.*{name}.*{value}"):
        make(**option)
