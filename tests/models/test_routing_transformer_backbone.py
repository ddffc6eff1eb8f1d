import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerBackbone
from tests.layers.checks import close
from tests.models import checks


@pytest.fixture(scope="module")
def backbone():
    return checks.make_backbone()


@pytest.mark.parametrize(
    "policy, compute, state",
    [
        ("float32", "float32", "float32"),
        ("mixed_bfloat16", "bfloat16", "float32"),
        ("float64", "float64", "float64"),
    ],
)
def test_shapes_and_dtypes_at_any_length(policy, compute, state):
    backbone = checks.make_backbone(dtype=policy, num_layers=1)
    assert backbone.output.shape == (None, None, 8)
    for length in (1, 3, 17):
        output = backbone(checks.inputs(checks.random_tokens(2, length)))
        assert output.shape == (2, length, 8) and output.dtype == compute
        assert np.all(np.isfinite(np.asarray(output, "float64")))
    for weight in backbone.weights:
        assert weight.dtype in (state, "uint32"), weight.path


@pytest.mark.end_to_end
def test_one_graph_serves_any_length(backbone):
    spec = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[{"token_ids": spec, "padding_mask": spec}])
    def function(inputs):
        return backbone(inputs)

    for length in (1, 6, 17):
        inputs = checks.inputs(checks.random_tokens(2, length), lengths=[length, 1])
        found = function({name: tf.constant(x) for name, x in inputs.items()})
        close(found, backbone(inputs), 1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "head_groups": [[LocalHeads(2, 4)], checks.groups(share_qk=True, num_probes=2)],
            "activation": "relu",
            "normalize_first": False,
            "dropout": 0.1,
            "shift_tokens": True,
            "max_sequence_length": 16,
            "layer_norm_epsilon": 1e-3,
            "dtype": "mixed_bfloat16",
        },
        {"reversible": True, "feed_forward_chunk_size": 4, "num_layers": 1},
    ],
)
def test_config_makes_an_equal_model(changes):
    backbone = checks.make_backbone(**changes)
    config = keras.saving.serialize_keras_object(backbone)
    for name, value in changes.items():
        if name not in ("head_groups", "dtype"):
            assert config["config"][name] == value
    copy = keras.saving.deserialize_keras_object(config)
    assert keras.saving.serialize_keras_object(copy)["config"] == config["config"]
    inputs = checks.inputs(checks.random_tokens(2, 9))
    expected = backbone(inputs)
    assert checks.largest_difference(copy(inputs), expected) > 0.1
    copy.set_weights(backbone.get_weights())
    np.testing.assert_array_equal(copy(inputs), expected)


def test_each_block_has_separate_head_groups():
    given = checks.groups()
    backbone = checks.make_backbone(head_groups=given)
    first, second = checks.routing_heads(backbone)
    assert checks.largest_difference(first.centroids, second.centroids) > 0.1
    assert not any(group.built for group in given)


def test_other_head_groups_for_each_block():
    backbone = checks.make_backbone(
        head_groups=[[LocalHeads(2, 4), FullHeads(2)], (RoutingHeads(1, 3, 4),)]
    )
    found = [block.attention.head_groups for block in backbone.transformer_blocks]
    kinds = [[type(group) for group in groups] for groups in found]
    assert kinds == [[LocalHeads, FullHeads], [RoutingHeads]]
    assert backbone(checks.inputs(checks.random_tokens(1, 9))).shape == (1, 9, 8)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head_groups": [[LocalHeads(1, 4)]] * 3}, "of the 2 blocks. Received: 3 lists"),
        ({"head_groups": []}, "head_groups must be a list of at least one head group"),
        ({"head_groups": [[LocalHeads(1, 4)], []]}, "at least one head group"),
        ({"head_groups": ["local"]}, "at least one head group"),
        ({"head_groups": LocalHeads(1, 4)}, "at least one head group"),
        ({"head_groups": [LocalHeads(3, 4)]}, "The 3 heads must divide the 8 features"),
        ({"num_layers": 0}, "num_layers must be a positive integer. Received: num_layers=0"),
        ({"vocabulary_size": 0}, "vocabulary_size must be a positive integer"),
        ({"hidden_dim": 8.0}, "hidden_dim must be a positive integer"),
        ({"intermediate_dim": -1}, "intermediate_dim must be a positive integer"),
        ({"max_sequence_length": 0}, "max_sequence_length must be a positive integer"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"activation": "gegelu"}, "gegelu"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        checks.make_backbone(**changes)


def test_saved_and_loaded(backbone, tmp_path):
    inputs = checks.inputs(checks.random_tokens(2, 9), lengths=[9, 4])
    expected = backbone(inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is RoutingTransformerBackbone
    np.testing.assert_array_equal(loaded(inputs), expected)

    backbone.save_weights(tmp_path / "model.weights.h5")
    fresh = RoutingTransformerBackbone.from_config(backbone.get_config())
    assert checks.largest_difference(fresh(inputs), expected) > 0.1
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(fresh(inputs), expected)

    backbone.save_to_preset(str(tmp_path / "preset"))
    preset = RoutingTransformerBackbone.from_preset(str(tmp_path / "preset"))
    np.testing.assert_array_equal(preset(inputs), expected)


def test_order_is_known_from_position_embeddings():
    """Positions of a repeated token differ only with position embeddings."""
    tokens = np.full([1, 8], 5)
    changes = {"head_groups": checks.groups(max_relative_distance=None), "num_layers": 1}
    without = np.asarray(checks.make_backbone(**changes)(checks.inputs(tokens)))
    assert checks.largest_difference(without, without[:, :1]) <= 1e-5
    backbone = checks.make_backbone(**changes, max_sequence_length=8)
    output = np.asarray(backbone(checks.inputs(tokens)))
    for i in range(1, 8):
        assert checks.largest_difference(output[:, i], output[:, i - 1]) > 1e-2
    shorter = backbone(checks.inputs(tokens[:, :5]))
    close(shorter, output[:, :5], 1e-5)


def test_a_sequence_longer_than_there_are_positions(backbone):
    backbone = checks.make_backbone(max_sequence_length=8)
    with pytest.raises(ValueError, match="max_sequence_length=8 positions.*Received: length 9"):
        backbone(checks.inputs(checks.random_tokens(1, 9)))


@pytest.mark.parametrize("shift_tokens, reach", [(False, 0), (True, 4)])
def test_each_block_shifts_tokens_twice(shift_tokens, reach):
    groups = [LocalHeads(1, block_size=1, look_back=0)]
    backbone = checks.make_backbone(head_groups=groups, shift_tokens=shift_tokens)
    tokens = checks.random_tokens(1, 12)
    changed = np.where(np.arange(12) == 3, tokens % 19 + 1, tokens)
    difference = np.asarray(backbone(checks.inputs(changed)) - backbone(checks.inputs(tokens)))
    found = np.flatnonzero(np.abs(difference).max(-1)[0] > 1e-4)
    assert found.tolist() == list(range(3, 3 + reach + 1))


def test_post_norm():
    backbone = checks.make_backbone(normalize_first=False)
    assert backbone.layer_norm is None
    last = backbone.transformer_blocks[-1].feed_forward_norm
    output = np.asarray(backbone(checks.inputs(checks.random_tokens(2, 9))))
    normalised = (output - last.beta.numpy()) / last.gamma.numpy()
    np.testing.assert_allclose(normalised.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(normalised.var(-1), 1, atol=1e-3)


def test_dropout_in_training_only():
    backbone = checks.make_backbone(dropout=0.5, num_layers=1)
    for heads in checks.routing_heads(backbone):
        heads.has_centroid_updates = True
    inputs = checks.inputs(checks.random_tokens(2, 9))
    np.testing.assert_array_equal(backbone(inputs), backbone(inputs))
    outputs = [backbone(inputs, training=True) for _ in range(2)]
    assert checks.largest_difference(*outputs) > 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_groups": checks.groups(share_qk=True), "normalize_first": False},
        {"head_groups": checks.groups(num_probes=2), "shift_tokens": True},
        {"head_groups": checks.groups(assignment="balanced")},
    ],
)
def test_padding_at_the_right_changes_no_output_before_it(changes):
    backbone = checks.make_backbone(**changes)
    tokens = checks.random_tokens(3, 11)
    padded = np.pad(tokens, [[0, 0], [0, 8]], constant_values=7)
    inputs = checks.inputs(padded, lengths=[11] * 3)
    found = np.asarray(backbone(inputs))[:, :11]
    close(found, backbone(checks.inputs(tokens)), 1e-5)
    other = {**inputs, "token_ids": padded}
    close(np.asarray(backbone(other))[:, :11], found, 1e-5)


def test_reversible_blocks_are_another_function_of_the_same_weights():
    plain, reversible = checks.make_backbone(), checks.make_backbone(reversible=True)
    assert [x.shape for x in plain.weights] == [x.shape for x in reversible.weights]
    inputs = checks.inputs(checks.random_tokens(2, 9))
    assert checks.largest_difference(plain(inputs), reversible(inputs)) > 0.1
    with pytest.raises(ValueError, match="cannot both be True"):
        checks.make_backbone(reversible=True, remat=True)


def test_reversible_blocks_saved_and_loaded(tmp_path):
    backbone = checks.make_backbone(reversible=True, num_layers=1)
    inputs = checks.inputs(checks.random_tokens(2, 9))
    expected = backbone(inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert checks.largest_difference(loaded(inputs), expected) <= 1e-6
    backbone.save_to_preset(tmp_path / "preset")
    loaded = type(backbone).from_preset(str(tmp_path / "preset"))
    assert checks.largest_difference(loaded(inputs), expected) <= 1e-6
