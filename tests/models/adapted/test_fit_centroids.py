import keras
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import ClusterStridedHeads, FullHeads, LocalRoutingHeads, RoutingHeads
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.ops import normalize
from tests.models.adapted.checks import make_backbone, make_inputs


def distances(model, inputs):
    """Returns the mean squared distance of queries and keys to the nearest centroid, by layer."""
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
    found = rt_keras.fit_centroids(model, inputs, balancing_steps=0, verbose=0)
    after = distances(model, inputs)
    assert len(found) == 2 and all(0.25 <= heads["fullest"] <= 1 for heads in found.values())
    assert np.all(np.array(after) < 0.9 * np.array(before))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoutingHeads(4, 4, 4, seed=0),
        lambda: RoutingHeads(4, 4, 4, assignment="balanced", seed=0),
        lambda: ClusterStridedHeads(4, 4, 4, seed=0),
    ],
    ids=["nearest", "balanced", "cluster-strided"],
)
def test_heads_that_share_keys(make):
    model = rt_keras.adapt(make_backbone("Llama"), [make()])
    inputs = make_inputs(model)
    fitted = rt_keras.fit_centroids(model, inputs, iterations=1, balancing_steps=0, verbose=0)
    assert len(fitted) == 2
    for call in attention_calls(model, inputs):
        ((group, (query, value, key), _),) = call.groups
        # Statistics are those of a training step, with the keys of all heads.
        group.collect(query=query, key=key, query_mask=None, key_mask=None)
        found = [np.asarray(x) for x in (group.member_counts, group.member_sums)]
        group.clear_statistics()
        group(query, value, key, training=True)
        for statistic, expected in zip((group.member_counts, group.member_sums), found):
            np.testing.assert_array_equal(statistic, expected)


@pytest.mark.end_to_end
def test_load_bias_makes_clusters_even():
    shares = []
    for steps in (0, 30):
        keras.utils.set_random_seed(0)
        model = rt_keras.adapt(make_backbone("GPT2"), [LocalRoutingHeads(4, 4, 4, 4)])
        data = tf.data.Dataset.from_tensors(make_inputs(model)).repeat(2)
        found = rt_keras.fit_centroids(model, data, balancing_steps=steps, verbose=0)
        shares.append(np.mean([heads["fullest"] for heads in found.values()]))
    assert shares[1] < shares[0]


def test_the_share_of_queries_with_keys_is_that_of_the_clusters():
    model = rt_keras.adapt(make_backbone("GPT2"), [RoutingHeads(4, 3, 4, use_query_key_norm=False)])
    inputs = make_inputs(model)
    found = rt_keras.fit_centroids(model, inputs, balancing_steps=0, verbose=0)
    for call, heads in zip(attention_calls(model, inputs), found.values()):
        ((_, _, clusters),) = call.clusters()
        queries, keys = clusters["queries"], clusters["keys"]
        same = queries[..., :, None] == keys[..., None, :]
        sees = np.tril(same & (keys >= 0)[..., None, :]).any(-1)
        real = queries >= 0
        assert heads["queries_with_keys"] == pytest.approx((sees & real).sum() / real.sum())
        assert heads["queries_with_keys"] < 1


def test_what_cannot_be_fitted_is_refused():
    model = rt_keras.adapt(make_backbone("Bert"), [FullHeads(4)])
    with pytest.raises(ValueError, match="has no heads with centroids"):
        rt_keras.fit_centroids(model, make_inputs(model))
    model = rt_keras.adapt(make_backbone("Bert"), [RoutingHeads(4, 2, 4)])
    with pytest.raises(ValueError, match="iterations must be at least 1. Received: 0"):
        rt_keras.fit_centroids(model, make_inputs(model), iterations=0)
    with pytest.raises(ValueError, match="data must have at least one batch"):
        rt_keras.fit_centroids(model, [])
    batches = [make_inputs(model), make_inputs(model, length=5)]
    with pytest.raises(ValueError, match="batches of data must have the same length"):
        rt_keras.fit_centroids(model, batches)
