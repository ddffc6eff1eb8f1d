import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerSpeechBackbone
from rt_keras.models.speech.speech_embedding import RoutingTransformerSpeechEmbedding
from tests.layers.checks import close
from tests.models import checks

BINS = 6


def make_backbone(*groups, **changes):
    """Two blocks; in float64, no choice of a cluster hangs on rounding."""
    groups = groups or (FullHeads(1), LocalHeads(1, 2), RoutingHeads(2, 2, 8))
    settings = {"head_groups": groups, "num_mel_bins": BINS, "dtype": "float64"}
    return checks.make_backbone(RoutingTransformerSpeechBackbone, **{**settings, **changes})


def inputs(frames, lengths=(None,), seed=0):
    features = np.random.default_rng(seed).normal(size=[len(lengths), frames, BINS])
    features = features.astype("float32")
    lengths = np.array([frames if length is None else length for length in lengths])
    mask = np.arange(frames) < lengths[:, None]
    return {"features": features * mask[:, :, None], "padding_mask": mask.astype("int32")}


def convolved(layer, x):
    """A convolution of three frames, two apart, and GELU, one position after the other."""
    kernel, bias = np.asarray(layer.kernel), np.asarray(layer.bias)
    padded = np.pad(x, [[1, 1], [0, 0]])
    rows = []
    for j in range(-(-len(x) // 2)):
        rows.append(sum(padded[2 * j + k] @ kernel[k] for k in range(3)) + bias)
    return np.asarray(keras.activations.gelu(tf.constant(rows)))


@pytest.mark.parametrize("frames", [1, 4, 7])
def test_embedding_is_two_convolutions(frames):
    embedding = RoutingTransformerSpeechEmbedding(8, BINS, dtype="float64")
    x = inputs(frames)["features"].astype("float64")
    embedding.build(x.shape)
    for convolution in embedding.convolutions:
        convolution.bias.assign(np.random.default_rng(0).normal(size=8))
    found = embedding(x)
    expected = x[0]
    for convolution in embedding.convolutions:
        expected = convolved(convolution, expected)
    assert found.shape == embedding.compute_output_shape(x.shape) == (1, -(-frames // 4), 8)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-12)


def test_values_are_those_of_the_layers_in_turn():
    backbone = make_backbone()
    x = inputs(22, [None, 13])
    mask = x["padding_mask"][:, ::4].astype(bool)
    expected = backbone.embedding(x["features"], padding_mask=x["padding_mask"])
    for block in backbone.transformer_blocks:
        expected = block(expected, padding_mask=mask)
    expected = np.asarray(backbone.layer_norm(expected))
    np.testing.assert_allclose(np.asarray(backbone(x))[mask], expected[mask], rtol=0, atol=1e-9)
    # Padding is not read.
    noisy = {**x, "features": x["features"] + (1 - x["padding_mask"][:, :, None])}
    np.testing.assert_array_equal(np.asarray(backbone(noisy))[mask], np.asarray(backbone(x))[mask])


@pytest.mark.slow
def test_config_and_files_make_an_equal_model(tmp_path):
    given = {"frequency_masks": 1, "time_mask_width": 9, "sinusoidal_positions": True}
    given["dtype"] = dtype = "mixed_bfloat16"
    backbone, x = make_backbone(**given), inputs(18, [None, 7])
    assert backbone.output.shape == (None, None, 8)
    checks.check_backbone(backbone, x, tmp_path, **given, num_mel_bins=BINS)
    # Positions are added to the embedding.
    x, embedding = x["features"], backbone.embedding
    plain = RoutingTransformerSpeechEmbedding(8, BINS, dtype=dtype)
    plain.build(x.shape)
    plain.set_weights(embedding.get_weights())
    close(embedding(x), embedding.positions(plain(x)), 1e-6)
    assert checks.largest_difference(embedding(x), plain(x)) > 0.5
