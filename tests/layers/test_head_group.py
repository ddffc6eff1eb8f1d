import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    CausalClusteredHeads,
    ClusteredHeads,
    ClusterStridedHeads,
    CompressiveHeads,
    FullHeads,
    HashedHeads,
    HeadGroup,
    LocalHeads,
    LocalRoutingHeads,
    LSHHeads,
    MultiHeadAttention,
    RandomHeads,
    RoutingHeads,
    StridedHeads,
)
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.head_group import copy_groups
from rt_keras.t2t import T2THashedHeads, T2TRoutingHeads, T2TStridedHeads
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

GROUPS = [
    lambda **kwargs: LocalHeads(2, 4, **kwargs),
    lambda **kwargs: FullHeads(2, **kwargs),
    lambda **kwargs: RoutingHeads(2, 3, 4, **kwargs),
    lambda **kwargs: RoutingHeads(2, 3, 4, assignment="balanced", **kwargs),
    lambda **kwargs: ClusterStridedHeads(2, 3, 4, **kwargs),
    lambda **kwargs: HashedHeads(2, 4, 4, **kwargs),
    lambda **kwargs: RandomHeads(2, 3, 4, **kwargs),
    lambda **kwargs: StridedHeads(2, 3, **kwargs),
    lambda **kwargs: LocalRoutingHeads(2, 2, 3, 4, kernel_size=3, **kwargs),
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
    added = relative.trainable_variables[: -len(plain.trainable_variables) or None]
    assert [weight.shape for weight in added] == [(2, 7, 6)]
    # Vectors of 0 have no effect.
    weights = [weight for weight in relative.weights if weight is not relative.relative_embeddings]
    for weight, source in zip(weights, plain.weights, strict=True):
        weight.assign(source)
    assert checks.largest_difference(relative(x, x, x), plain(x, x, x)) > 1e-2
    relative.relative_embeddings.assign(np.zeros((2, 7, 6)))
    checks.close(relative(x, x, x), plain(x, x, x), 1e-6)


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


@pytest.mark.parametrize("make", [GROUPS[0], *GROUPS[2:]])
def test_no_mask_of_pairs(make):
    x = checks.random(1, 2, 9, 6)
    with pytest.raises(ValueError, match="do not support an attention_mask of .batch, queries"):
        make()(x, x, x, attention_mask=np.ones((1, 9, 9), bool))


@pytest.mark.parametrize("make", GROUPS)
def test_mixed_bfloat16(make):
    x = checks.random(1, 2, 9, 6)
    group = make(max_relative_distance=2, dtype="mixed_bfloat16")
    assert group(x, x, x).dtype == "bfloat16"
    assert group.relative_embeddings.dtype == "float32"


@pytest.mark.parametrize("make", [lambda: StridedHeads(2, 3), lambda: T2TStridedHeads(2, 3)])
def test_files_of_earlier_versions_have_a_token_bias(make):
    group = make()
    saved = keras.saving.serialize_keras_object(group)
    saved["config"]["token_bias"] = None
    assert keras.saving.deserialize_keras_object(saved).get_config() == group.get_config()
    saved["config"]["token_bias"] = "fixed"
    kind = type(group).__name__
    message = f"token_bias must be None for {kind}: only .*rt_keras.t2t .*token_bias='fixed'"
    with pytest.raises(ValueError, match=message):
        keras.saving.deserialize_keras_object(saved)


def test_saving(tmp_path):
    # A saved group has the relative positions of its kind.
    groups = [make(max_relative_distance=2) for make in GROUPS]
    groups.append(LocalHeads(2, 2, look_back=(1, 0), grid=(2, 2), key_block_size=2))
    groups.append(HashedHeads(2, 4, 4, share_qk=True, seed=1))
    inputs = keras.Input((8, 6))
    layer = MultiHeadAttention(groups, 2)
    model = keras.Model(inputs, layer(inputs, inputs))
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


def test_a_group_must_define_its_attention():
    x = keras.random.normal([1, 2, 9, 6])
    with pytest.raises(NotImplementedError):
        HeadGroup(2)(x, x, x)


@pytest.mark.parametrize("name", ["num_heads", "max_relative_distance"])
def test_bad_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must be a.* integer.*. Received: {name}=0"):
        FullHeads(**{"num_heads": 2, name: 0})


# Persistent keys.


PERSISTENT = [
    FullHeads(2, num_persistent_keys=3),
    FullHeads(2, memory_length=5, num_persistent_keys=3),
    LocalHeads(2, 4, num_persistent_keys=3),
    RoutingHeads(2, 2, 4, num_persistent_keys=3),
    LocalRoutingHeads(2, 4, 2, 4, num_persistent_keys=3),
]


@pytest.mark.parametrize("group", PERSISTENT, ids=lambda group: type(group).__name__)
def test_all_queries_attend_to_persistent_keys(group):
    group = type(group).from_config(group.get_config())
    layer, x = MultiHeadAttention([group]), checks.random(1, 11, 8)
    output = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 4), output, rtol=0, atol=1e-5)
    chunks = layer.call_with_cache(x[:, :6], layer.new_cache(1, 11), 0)
    rest = layer.call_with_cache(x[:, 6:], chunks[1], 6)
    found = np.concatenate([chunks[0], rest[0]], axis=1)
    np.testing.assert_allclose(found, output, rtol=0, atol=1e-5)
    # Their weights and those of the positions sum to 1.
    sums = tf.reduce_sum(attention_of(layer, x), axis=-1)
    assert np.all(sums.numpy() < 0.999)


def attention_of(layer, x):
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    (call,) = attention_calls(model, x)
    return tf.concat(list(call.weights()), axis=-1)


@pytest.mark.parametrize(
    "group, options, message",
    [
        (
            lambda: CompressiveHeads(2, 4, 1),
            {},
            "CompressiveHeads: num_persistent_keys must be None. Received: num_persistent_keys=3",
        ),
        (
            lambda: LocalHeads(2, 4),
            {"attention_activation": "sparsemax"},
            "attention_activation='sparsemax'.* cannot be joined .* Persistent",
        ),
        (
            lambda: LocalHeads(2, 4),
            {"dense_below": 8},
            "LocalHeads with dense_below cannot have persistent keys",
        ),
        (
            lambda: LocalHeads(2, 4),
            {"num_persistent_keys": 0},
            "num_persistent_keys must be an integer of at least 1",
        ),
    ],
)
def test_unsupported_persistent_keys_are_refused(group, options, message):
    config = {**group().get_config(), "num_persistent_keys": 3, **options}
    # Keras replaces the error of a constructor.
    with pytest.raises((ValueError, TypeError), match=message):
        MultiHeadAttention([type(group()).from_config(config)]).build([1, 8, 8], [1, 8, 8])


def test_global_tokens_and_persistent_keys_are_not_combined():
    with pytest.raises(
        ValueError, match="LocalHeads do not support global tokens.* no persistent keys"
    ):
        MultiHeadAttention([LocalHeads(2, 4, num_persistent_keys=3)], num_global_tokens=1)


SHARED = {
    "hashed": lambda: HashedHeads(2, 3, 4, share_qk=True),
    "lsh": lambda: LSHHeads(2, 4, 3),
    "nearest": lambda: RoutingHeads(2, 3, 4, share_qk=True),
    "balanced": lambda: RoutingHeads(2, 3, 4, assignment="balanced", share_qk=True),
    "cluster-strided": lambda: ClusterStridedHeads(2, 3, 4, share_qk=True),
    "local-routing": lambda: LocalRoutingHeads(2, 3, 3, 4, share_qk=True),
    "hashed of the dialect": lambda: T2THashedHeads(2, 4, 4, 4, share_qk=True),
    "routing of the dialect": lambda: T2TRoutingHeads(2, 2, 4, 4, share_qk=True),
}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("keys", [6, 14])
def test_queries_that_are_also_keys_need_as_many_values(kind, keys):
    group = SHARED[kind]()
    name = type(group).__name__
    query, value = checks.random(2, 2, 9, 4), checks.random(2, 2, keys, 4)
    message = f"{name} with share_qk=True need as many values as queries"
    with pytest.raises(ValueError, match=f"{message}.* length 9, value of length {keys}"):
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
        (lambda **options: ClusteredHeads(2, 3, **options), {"max_relative_distance": 3}),
        (lambda **options: CausalClusteredHeads(2, 3, **options), {"max_relative_distance": 3}),
        (lambda **options: CausalClusteredHeads(2, 3, **options), {"share_qk": True}),
        (lambda **options: CausalClusteredHeads(2, 3, **options), {"window_size": 4}),
    ],
)
def test_options_that_a_kind_does_not_have_are_refused(make, option):
    ((name, value),) = option.items()
    kind = type(make()).__name__
    with pytest.raises(ValueError, match=f"{kind}.*{name}.*{value}"):
        make(**option)
    # A file with None for the option loads.
    config = {**make().get_config(), name: None}
    assert name not in type(make()).from_config(config).get_config()
