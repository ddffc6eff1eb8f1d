import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import (
    RoutingTransformerSpeechBackbone,
    RoutingTransformerStreamingSpeechBackbone,
)
from tests.layers.checks import close
from tests.models import checks

BINS, FRAMES = 6, 32
HEADS = {
    "full": lambda: [FullHeads(2, max_relative_distance=3)],
    "local": lambda: [LocalHeads(2, 2)],
    "nearest": lambda: [RoutingHeads(2, 2, 4, assignment="nearest")],
}


def make_backbone(kind="local", cls=RoutingTransformerStreamingSpeechBackbone, **changes):
    """Two blocks; in float64, no choice of a cluster hangs on rounding."""
    settings = {"head_groups": HEADS[kind](), "num_mel_bins": BINS, "dtype": "float64"}
    return checks.make_backbone(cls, **{**settings, **changes})


def random_features(frames=FRAMES, batch=2):
    return np.random.default_rng(0).normal(size=[batch, frames, BINS]).astype("float32")


def outputs(backbone, features):
    mask = np.ones(features.shape[:2], "int32")
    return np.asarray(backbone({"features": features, "padding_mask": mask}))


def in_parts(backbone, features, sizes):
    """Returns the outputs of parts of these numbers of positions."""
    positions = features.shape[1] // 4
    cache, position, found = backbone.new_cache(len(features), positions), 0, []
    for size in sizes:
        part = features[:, 4 * position : 4 * (position + size)]
        output, cache = backbone.call_with_cache(part, cache, position)
        assert output.shape == (len(features), size, 8)
        found.append(output)
        position += size
    assert position == positions
    return tf.concat(found, axis=1)


@pytest.mark.parametrize("kind", HEADS)
def test_no_output_depends_on_a_later_frame(kind):
    backbone, features = make_backbone(kind), random_features()
    expected = outputs(backbone, features)
    for frame in (0, 1, 4, 21, 31):
        changed = features.copy()
        changed[:, frame:] += 1
        found = outputs(backbone, changed)
        # The first position that sees the frame is the one whose first frame is not before it.
        seen = -(-frame // 4)
        np.testing.assert_allclose(found[:, :seen], expected[:, :seen], rtol=0, atol=1e-9)
        assert np.all(np.max(np.abs(found - expected)[:, seen:], axis=(0, 2)) > 1e-4)


def test_a_bidirectional_backbone_with_its_weights_sees_them():
    backbone = make_backbone("full", cls=RoutingTransformerSpeechBackbone)
    features = random_features()
    changed = features.copy()
    changed[:, -4:] += 1
    found, expected = outputs(backbone, changed), outputs(backbone, features)
    assert np.all(np.max(np.abs(found - expected), axis=(0, 2)) > 1e-4)
    streaming = make_backbone("full")
    streaming.set_weights(backbone.get_weights())
    assert checks.largest_difference(outputs(streaming, features), expected) > 1e-2


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("sizes", [[8], [1] * 8, [3, 1, 4]])
def test_parts_of_a_sound_give_the_same_as_the_whole(kind, sizes):
    backbone, features = make_backbone(kind), random_features()
    found = in_parts(backbone, features, sizes)
    np.testing.assert_allclose(found, outputs(backbone, features), rtol=0, atol=1e-9)


def test_positions_go_on_in_the_next_part():
    backbone = make_backbone("full", sinusoidal_positions=True, dtype="float32")
    features = random_features()
    close(in_parts(backbone, features, [3, 5]), outputs(backbone, features), 1e-4)


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", HEADS)
def test_parts_compiled_by_xla(kind):
    backbone, features = make_backbone(kind, num_layers=1, dtype="float32"), random_features()
    call = tf.function(backbone.call_with_cache, jit_compile=True)
    cache, found = backbone.new_cache(2, 8), []
    for position in (0, 4):
        part = tf.constant(features[:, 4 * position : 4 * position + 16])
        output, cache = call(part, cache, tf.constant(position))
        found.append(output)
    close(tf.concat(found, axis=1), outputs(backbone, features), 1e-4)


def test_lengths_that_are_no_multiple_of_4():
    backbone, features = make_backbone(), random_features(30)
    found = outputs(backbone, features)
    assert found.shape == (2, 8, 8)
    padded = np.pad(features, [[0, 0], [0, 2], [0, 0]])
    np.testing.assert_allclose(in_parts(backbone, padded, [3, 5]), found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", HEADS)
def test_padding_changes_nothing(kind):
    backbone, features = make_backbone(kind), random_features(30, batch=4)
    lengths = np.array([30, 17, 4, 1])
    mask = np.arange(30) < lengths[:, None]
    features *= mask[:, :, None]
    found = backbone({"features": features, "padding_mask": mask.astype("int32")})
    for row, length in enumerate(lengths):
        expected = outputs(backbone, features[row : row + 1, :length])[0]
        np.testing.assert_allclose(found[row, : len(expected)], expected, rtol=0, atol=1e-9)


def test_mixed_precision():
    backbone, exact = make_backbone("local", dtype="mixed_bfloat16"), make_backbone("local")
    exact.set_weights(backbone.get_weights())
    features = random_features()
    expected = outputs(exact, features)
    for found in (
        backbone({"features": features, "padding_mask": np.ones([2, FRAMES], "int32")}),
        in_parts(backbone, features, [3, 5]),
    ):
        assert found.dtype == tf.bfloat16
        # The deviation of outputs is 1, and their rounding that of 8 bits, through a few layers.
        assert np.mean(np.abs(tf.cast(found, tf.float64) - expected)) < 0.1


def test_config_makes_an_equal_model():
    backbone = make_backbone(sinusoidal_positions=True)
    copy = type(backbone).from_config(backbone.get_config())
    copy.set_weights(backbone.get_weights())
    features = random_features()
    assert checks.largest_difference(outputs(copy, features), outputs(backbone, features)) <= 1e-12
    assert copy.embedding.causal and copy.causal


def test_a_state_needs_causal_convolutions():
    embedding = make_backbone(cls=RoutingTransformerSpeechBackbone).embedding
    with pytest.raises(ValueError, match="a state needs causal=True"):
        embedding.call_with_state(random_features(4), embedding.new_state(2), 0)


def test_heads_that_cannot_decode():
    backbone = make_backbone(head_groups=[RoutingHeads(2, 2, 4, assignment="balanced")])
    assert not backbone.cached_decoding and make_backbone().cached_decoding
    with pytest.raises(ValueError, match="'balanced' cannot be decoded with a cache"):
        backbone.new_cache(1, 4)


def test_the_cache_of_another_model():
    backbone = make_backbone("local")
    cache = make_backbone("local", num_layers=1).new_cache(2, 12)
    with pytest.raises(ValueError, match="must have one entry for each of the model's 2 blocks"):
        backbone.call_with_cache(random_features(), cache, 0)
