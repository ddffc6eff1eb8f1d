import keras
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import FullHeads, LocalRoutingHeads, RoutingHeads
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.ops import normalize
from tests.models.adapted.checks import make_backbone, make_inputs


def distances(model, inputs):
    """The mean squared distance of queries and keys to their nearest centroids, by layer."""
    found = []
    for call in attention_calls(model, inputs):
        group, (query, _, key), _ = call.groups[0]
        centroids = np.asarray(group.centroids)
        vectors = np.concatenate([normalize(x) for x in (query, key)], axis=2)
        gaps = vectors[:, :, :, None] - centroids[None, :, None]
        found.append((gaps**2).sum(-1).min(-1).mean())
    return found


def test_centroids_move_to_the_queries_and_keys_of_every_layer():
    model = rt_keras.adapt(make_backbone("Bert"), [RoutingHeads(4, 4, 4, seed=0)])
    inputs = make_inputs(model)
    before = distances(model, inputs)
    fullest = rt_keras.fit_centroids(model, inputs, balancing_steps=0, verbose=0)
    after = distances(model, inputs)
    assert len(fullest) == 2 and all(0.25 <= share <= 1 for share in fullest.values())
    assert np.all(np.array(after) < 0.9 * np.array(before))


@pytest.mark.end_to_end
def test_load_bias_makes_clusters_even():
    shares = []
    for steps in (0, 30):
        keras.utils.set_random_seed(0)
        model = rt_keras.adapt(make_backbone("GPT2"), [LocalRoutingHeads(4, 4, 4, 4)])
        data = tf.data.Dataset.from_tensors(make_inputs(model)).repeat(2)
        fullest = rt_keras.fit_centroids(model, data, balancing_steps=steps, verbose=0)
        shares.append(np.mean(list(fullest.values())))
    assert shares[1] < shares[0]


def test_what_cannot_be_fitted_is_refused():
    model = rt_keras.adapt(make_backbone("Bert"), [FullHeads(4)])
    with pytest.raises(ValueError, match="has no heads with centroids"):
        rt_keras.fit_centroids(model, make_inputs(model))
    model = rt_keras.adapt(make_backbone("Bert"), [RoutingHeads(4, 2, 4)])
    with pytest.raises(ValueError, match="iterations must be at least 1. Received: 0"):
        rt_keras.fit_centroids(model, make_inputs(model), iterations=0)
    with pytest.raises(ValueError, match="data has no batch"):
        rt_keras.fit_centroids(model, [])
