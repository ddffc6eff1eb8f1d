import numpy as np
import pytest

import rt_keras
from rt_keras.layers import RoutingHeads
from rt_keras.models.adapted.backbones import attention_layers
from tests.models.adapted.checks import make_backbone, make_inputs


@pytest.mark.slow
def test_centroids_of_every_layer_are_moved():
    model = rt_keras.adapt(make_backbone("Bert"), [RoutingHeads(4, 4, 4, seed=0)])
    groups = [layer.head_groups[0] for layer in attention_layers(model)]
    before = [np.array(group.centroids) for group in groups]
    found = rt_keras.fit_centroids(model, make_inputs(model), iterations=1, verbose=0)
    assert len(found) == 2 and all(0.25 <= heads["fullest"] <= 1 for heads in found.values())
    for group, start in zip(groups, before):
        assert np.abs(np.array(group.centroids) - start).max() > 1e-3
