import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import (
    RoutingTransformerSpeechBackbone,
    RoutingTransformerStreamingSpeechBackbone,
)
from rt_keras.models.model_section import HEAD_KINDS, ModelSection, SpeechSection
from rt_keras.models.routing_transformer_speech_embedding import RoutingTransformerSpeechEmbedding
from tests.layers.checks import close
from tests.models import checks, reference

BINS = 6
HEADS = {
    "full": lambda: [FullHeads(2)],
    "local": lambda: [LocalHeads(2, 2)],
    "nearest": lambda: [RoutingHeads(2, 2, 8, assignment="nearest")],
}


def make_backbone(kind="full", cls=RoutingTransformerSpeechBackbone, **changes):
    """Two blocks; in float64, no choice of a cluster hangs on rounding."""
    settings = {"head_groups": HEADS[kind](), "num_mel_bins": BINS, "dtype": "float64"}
    return checks.make_backbone(cls, **{**settings, **changes})


def inputs(frames, lengths=(None,), seed=0):
    features = np.random.default_rng(seed).normal(size=[len(lengths), frames, BINS])
    features = features.astype("float32")
    lengths = np.array([frames if length is None else length for length in lengths])
    mask = np.arange(frames) < lengths[:, None]
    return {"features": features * mask[:, :, None], "padding_mask": mask.astype("int32")}


def convolved(layer, x, causal):
    """A convolution of three frames, two apart, and GELU, one position after the other."""
    kernel, bias = np.asarray(layer.kernel), np.asarray(layer.bias)
    padded = np.pad(x, [[2, 0] if causal else [1, 1], [0, 0]])
    rows = []
    for j in range(-(-len(x) // 2)):
        rows.append(sum(padded[2 * j + k] @ kernel[k] for k in range(3)) + bias)
    return np.asarray(keras.activations.gelu(tf.constant(rows)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("frames", [1, 2, 4, 7, 12])
def test_embedding_is_two_convolutions(frames, causal):
    embedding = RoutingTransformerSpeechEmbedding(8, BINS, causal, dtype="float64")
    x = inputs(frames)["features"].astype("float64")
    embedding.build(x.shape)
    for convolution in embedding.convolutions:
        convolution.bias.assign(np.random.default_rng(0).normal(size=8))
    found = embedding(x)
    expected = x[0]
    for convolution in embedding.convolutions:
        expected = convolved(convolution, expected, causal)
    assert found.shape == embedding.compute_output_shape(x.shape) == (1, -(-frames // 4), 8)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-12)


def test_positions_are_added_to_the_embedding():
    with_positions, without = (
        RoutingTransformerSpeechEmbedding(8, BINS, sinusoidal_positions=x) for x in (True, False)
    )
    x = inputs(12)["features"]
    with_positions(x), without(x)
    without.set_weights(with_positions.get_weights())
    expected = with_positions.positions(without(x))
    close(with_positions(x), expected, 1e-6)
    assert np.max(np.abs(expected - without(x))) > 0.5


@pytest.mark.parametrize("frames", [1, 4, 5, 30])
def test_shapes(frames):
    backbone = make_backbone("local", dtype="float32")
    assert backbone(inputs(frames, [None, None])).shape == (2, -(-frames // 4), 8)
    assert backbone.output.shape == (None, None, 8)


def test_mixed_precision():
    backbone, expected = make_backbone("local", dtype="mixed_bfloat16"), make_backbone("local")
    expected.set_weights(backbone.get_weights())
    x = inputs(30, [None, 17])
    found = backbone(x)
    assert found.dtype == tf.bfloat16
    assert {weight.dtype for weight in backbone.trainable_weights} == {"float32"}
    # The deviation of outputs is 1, and their rounding that of 8 bits, through a few layers.
    assert np.mean(np.abs(tf.cast(found, tf.float64) - expected(x))) < 0.1


def test_values_of_full_attention():
    backbone = make_backbone(activation="relu")
    x = inputs(22, [None, 13])
    mask = x["padding_mask"][:, ::4].astype(bool)
    expected = np.asarray(backbone.embedding(x["features"], padding_mask=x["padding_mask"]))
    for block in backbone.transformer_blocks:
        seen = np.broadcast_to(mask[:, None], [2, 6, 6])
        expected = reference.pre_norm_block(block, expected, seen)
    expected = reference.layer_norm(backbone.layer_norm, expected)
    np.testing.assert_allclose(np.asarray(backbone(x))[mask], expected[mask], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", HEADS)
def test_every_position_depends_on_later_frames(kind):
    backbone, x = make_backbone(kind), inputs(16)
    changed = {**x, "features": x["features"].copy()}
    changed["features"][:, -1] += 1
    difference = np.max(np.abs(np.asarray(backbone(changed) - backbone(x))), axis=(0, 2))
    assert difference[-1] > 1e-4
    if kind == "full":
        assert np.all(difference > 1e-4)
    else:
        # Of blocks of two positions or of clusters, not all are concerned, but earlier ones are.
        assert np.any(difference[:-1] > 1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_padding_changes_nothing(kind):
    backbone, lengths = make_backbone(kind), [30, 17, 4, 1, 24]
    x = inputs(30, lengths)
    found = np.asarray(backbone(x))
    for row, length in enumerate(lengths):
        alone = {name: values[row : row + 1, :length] for name, values in x.items()}
        expected = np.asarray(backbone(alone))[0]
        np.testing.assert_allclose(found[row, : len(expected)], expected, rtol=0, atol=1e-9)


def test_features_of_padding_are_not_read():
    backbone, x = make_backbone(), inputs(30, [18])
    noise = {**x, "features": x["features"] + (1 - x["padding_mask"][:, :, None])}
    np.testing.assert_array_equal(backbone(noise)[:, :5], backbone(x)[:, :5])


def test_masks_are_of_training_alone():
    backbone = make_backbone("local", time_masks=1, frequency_masks=1, time_mask_width=20)
    x = inputs(40)
    np.testing.assert_array_equal(backbone(x, training=False), backbone(x))
    assert checks.largest_difference(backbone(x, training=True), backbone(x)) > 1e-3


def test_config_makes_an_equal_model():
    settings = {"frequency_masks": 1, "time_mask_width": 9, "sinusoidal_positions": True}
    backbone = make_backbone("nearest", **settings)
    config = backbone.get_config()
    assert {name: config[name] for name in settings} == settings
    assert config["num_mel_bins"] == BINS
    copy = type(backbone).from_config(config)
    copy.set_weights(backbone.get_weights())
    x = inputs(18, [None, 7])
    assert checks.largest_difference(copy(x), backbone(x)) <= 1e-12


def test_weights_are_those_of_the_streaming_backbone():
    backbone = make_backbone("local")
    streaming = make_backbone("local", cls=RoutingTransformerStreamingSpeechBackbone)
    shapes = [[tuple(x.shape) for x in model.weights] for model in (backbone, streaming)]
    assert shapes[0] == shapes[1]


def test_a_section_makes_a_backbone():
    model = ModelSection(
        num_layers=3,
        hidden_dim=8,
        intermediate_dim=8,
        sinusoidal_positions=True,
        local=HEAD_KINDS["local"](num_heads=1, block_size=4),
        routing=HEAD_KINDS["routing"](num_heads=1, window_size=4, share_qk=True),
        speech=SpeechSection(num_mel_bins=5, time_masks=2),
    )
    backbone = RoutingTransformerSpeechBackbone.from_section(model, vocabulary_size=9)
    assert len(backbone.transformer_blocks) == 3 and backbone.vocabulary_size == 9
    assert backbone.num_mel_bins == 5 and backbone.time_masks == 2
    assert backbone.embedding.positions is not None
    # As in the encoder of an encoder-decoder, keys are separate from queries.
    assert not any(block.attention.head_groups[0].share_qk for block in backbone.transformer_blocks)


def test_it_does_not_decode():
    backbone = make_backbone("local")
    assert not backbone.cached_decoding
    with pytest.raises(ValueError, match="RoutingTransformerSpeechBackbone has bidirectional"):
        backbone.new_cache(1, 8)


@pytest.mark.parametrize(
    "name", ["vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim", "num_mel_bins"]
)
def test_bad_sizes(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer. Received: {name}=0"):
        make_backbone("local", **{name: 0})
    with pytest.raises(ValueError, match="time_masks must be an integer of at least 0"):
        make_backbone("local", time_masks=-1)
