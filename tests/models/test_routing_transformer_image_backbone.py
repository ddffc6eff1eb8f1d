import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerImageBackbone
from tests.models import checks, reference

SHAPE = (4, 2, 3)
VALUES, CLASSES = 7, 5


def make_backbone(**changes):
    """Two blocks; weights are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    settings = {
        "vocabulary_size": VALUES,
        "image_shape": SHAPE,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "head_groups": [LocalHeads(1, 6, grid=(2, 2)), RoutingHeads(1, 3, 6)],
        "block_shape": (2, 3),
    }
    backbone = RoutingTransformerImageBackbone(**{**settings, **changes})
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return backbone


def random_inputs(batch=2, classes=None, seed=1):
    rng = np.random.default_rng(seed)
    inputs = {"images": rng.integers(0, VALUES, [batch, *SHAPE], dtype="int32")}
    if classes is not None:
        inputs["labels"] = rng.integers(0, classes, [batch], dtype="int32")
    return inputs


@pytest.fixture(scope="module")
def backbone():
    return make_backbone(num_classes=CLASSES)


@pytest.mark.parametrize(
    "policy, compute, state",
    [
        ("mixed_bfloat16", "bfloat16", "float32"),
        ("float64", "float64", "float64"),
    ],
)
def test_shapes_and_dtypes(policy, compute, state):
    backbone = make_backbone(dtype=policy)
    assert {name: x.shape for name, x in backbone.input.items()} == {"images": (None, *SHAPE)}
    assert backbone.output.shape == (None, 24, 8)
    for batch in (1, 3):
        output = backbone(random_inputs(batch))
        assert output.shape == (batch, 24, 8) and output.dtype == compute
        assert np.all(np.isfinite(np.asarray(output, "float64")))
    for weight in backbone.weights:
        assert weight.dtype in (state, "uint32"), weight.path


def test_values_of_full_attention():
    backbone = make_backbone(head_groups=[FullHeads(2)], activation="relu", dtype="float64")
    inputs = random_inputs()
    x = np.asarray(backbone.embedding(inputs["images"]))
    before = np.broadcast_to(np.tri(24, dtype=bool), [2, 24, 24])
    for block in backbone.transformer_blocks:
        x = reference.pre_norm_block(block, x, before)
    expected = reference.layer_norm(backbone.layer_norm, x)
    np.testing.assert_allclose(backbone(inputs), expected, rtol=0, atol=1e-5)


def test_each_state_follows_from_the_values_before_it(backbone):
    inputs = random_inputs(classes=CLASSES)
    sequence = np.asarray(backbone.embedding.to_sequence(inputs["images"]))
    expected = np.asarray(backbone(inputs))
    for t in (0, 5, 11, 22):
        changed = sequence.copy()
        changed[:, t] = (changed[:, t] + 3) % VALUES
        images = np.asarray(backbone.embedding.to_images(changed))
        found = np.asarray(backbone({**inputs, "images": images}))
        assert checks.largest_difference(found[:, : t + 1], expected[:, : t + 1]) <= 1e-5
        assert checks.largest_difference(found[:, t + 1], expected[:, t + 1]) > 1e-2


def test_the_class_tells_from_the_first_state_on(backbone):
    inputs = {**random_inputs(), "labels": np.array([0, 0])}
    other = {**inputs, "labels": np.array([0, 4])}
    first, second = np.abs(np.asarray(backbone(inputs) - backbone(other))).max(-1)
    assert not first.any() and (second > 1e-3).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "head_groups": [[LocalHeads(2, 6)], [LocalHeads(1, 6), RoutingHeads(1, 3, 6)]],
            "block_shape": (6,),
            "num_classes": CLASSES,
            "position_embedding": False,
            "activation": "relu",
            "normalize_first": False,
            "dropout": 0.1,
            "use_head_dense": True,
            "dtype": "mixed_bfloat16",
        },
    ],
)
def test_config_makes_an_equal_model(changes):
    backbone = make_backbone(**changes)
    config = keras.saving.serialize_keras_object(backbone)
    for name, value in changes.items():
        if name not in ("head_groups", "dtype"):
            assert config["config"][name] == value or tuple(config["config"][name]) == value
    copy = keras.saving.deserialize_keras_object(config)
    inputs = random_inputs(classes=changes.get("num_classes"))
    expected = backbone(inputs)
    assert checks.largest_difference(copy(inputs), expected) > 0.1
    copy.set_weights(backbone.get_weights())
    np.testing.assert_array_equal(copy(inputs), expected)


def test_saved_and_loaded(backbone, tmp_path):
    inputs = random_inputs(classes=CLASSES)
    expected = backbone(inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is RoutingTransformerImageBackbone
    np.testing.assert_array_equal(loaded(inputs), expected)
    backbone.save_to_preset(str(tmp_path / "preset"))
    preset = RoutingTransformerImageBackbone.from_preset(str(tmp_path / "preset"))
    np.testing.assert_array_equal(preset(inputs), expected)


def test_dropout_in_training_only():
    backbone, inputs = make_backbone(head_groups=[LocalHeads(2, 6)], dropout=0.5), random_inputs()
    np.testing.assert_array_equal(backbone(inputs), backbone(inputs))
    outputs = [backbone(inputs, training=True) for _ in range(2)]
    assert checks.largest_difference(*outputs) > 0.1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"vocabulary_size": 0}, "vocabulary_size must be a positive integer"),
        ({"num_layers": 1.5}, "num_layers must be a positive integer. Received: num_layers=1.5"),
        ({"image_shape": (4, 0, 3)}, "image_shape must be a positive integer"),
        ({"head_groups": []}, "head_groups must be a list of at least one"),
        (
            {"head_groups": [[LocalHeads(2, 6)]]},
            "head_groups must be .* the 2 blocks. Received: 1 lists",
        ),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        make_backbone(**changes)
