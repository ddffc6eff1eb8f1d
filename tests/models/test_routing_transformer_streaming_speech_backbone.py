import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerStreamingSpeechBackbone
from tests.models import checks

BINS, FRAMES = 6, 32


def outputs(backbone, features):
    mask = np.ones(features.shape[:2], "int32")
    return np.asarray(backbone({"features": features, "padding_mask": mask}))


@pytest.mark.slow
def test_outputs_depend_on_no_later_frame_and_come_in_parts():
    groups = [FullHeads(1, max_relative_distance=3), LocalHeads(1, 2), RoutingHeads(2, 2, 4)]
    options = {"num_mel_bins": BINS, "sinusoidal_positions": True, "dtype": "float64"}
    backbone = checks.make_backbone(
        RoutingTransformerStreamingSpeechBackbone, head_groups=groups, **options
    )
    features = np.random.default_rng(0).normal(size=[2, FRAMES, BINS]).astype("float32")
    expected = outputs(backbone, features)
    for frame in (1, 4, 21):
        changed = features.copy()
        changed[:, frame:] += 1
        found = outputs(backbone, changed)
        # The first position that sees the frame is the one whose first frame is not before it.
        seen = -(-frame // 4)
        np.testing.assert_allclose(found[:, :seen], expected[:, :seen], rtol=0, atol=1e-9)
        assert np.all(np.max(np.abs(found - expected)[:, seen:], axis=(0, 2)) > 1e-4)
    cache, position, parts = backbone.new_cache(2, 8), 0, []
    for size in (3, 1, 4):
        part = features[:, 4 * position : 4 * (position + size)]
        output, cache = backbone.call_with_cache(part, cache, position)
        parts.append(output)
        position += size
    # Sines are computed in float32.
    np.testing.assert_allclose(tf.concat(parts, axis=1), expected, rtol=0, atol=1e-5)
