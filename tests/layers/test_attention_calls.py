import threading

import keras
import numpy as np
import pytest

from rt_keras import layers
from rt_keras.layers import attention_calls
from rt_keras.layers.key_sets import Persistent, Window
from rt_keras.models import RoutingTransformerBackbone
from rt_keras.ops.convolution import naive_convolution
from rt_keras.ops.naive import naive_normalize
from tests.layers import checks

LENGTH = 12
ROUTED = "Cluster of assignment 'nearest'"


def calls_of(groups, x, mask=None, **options):
    """Returns the single call of a layer with these groups, and the output."""
    inputs = keras.Input(x.shape[1:])
    layer = layers.MultiHeadAttention(groups, key_dim=5, value_dim=6, **options)
    kept = None if mask is None else keras.ops.convert_to_tensor(mask)
    output = layer(inputs, inputs, query_mask=kept, value_mask=kept, use_causal_mask=True)
    model = keras.Model(inputs, output)
    (call,) = attention_calls.attention_calls(model, x)
    return call


@pytest.mark.parametrize("others", [[], [Persistent(2)]])
def test_parts_of_weights_are_those_of_all_keys(others, monkeypatch):
    monkeypatch.setattr(attention_calls, "KEYS_AT_ONCE", 5)
    x = checks.random(2, LENGTH, 8)
    call = calls_of([layers.Heads(2, [Window(4), *others])], x)
    parts = [part.numpy() for part in call.weights()]
    weights = np.concatenate(parts, axis=-1)
    options = {"use_causal_mask": True, "return_attention_scores": True}
    assert len(parts) > 1
    np.testing.assert_allclose(weights, call.layer(x, x, **options)[1], atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), call.sums(), atol=1e-6)
    few = np.concatenate([part.numpy() for part in call.weights(7)], axis=-1)
    np.testing.assert_array_equal(few, weights[..., :7])


@pytest.mark.parametrize(
    "make, sources",
    [
        (lambda: layers.RoutingHeads(2, 3, 4), ["queries", "keys"]),
        (lambda: layers.RoutingHeads(2, 3, 4, share_qk=True), ["queries"]),
        # The routed keys are earlier queries.
        (lambda: layers.LocalRoutingHeads(2, 4, 3, 4, kernel_size=3), ["queries"]),
    ],
)
def test_clusters_are_those_of_the_nearest_centroids_without_padding(make, sources):
    mask = np.array([[True] * LENGTH, [True] * 9 + [False] * 3])
    heads = make()
    call = calls_of([layers.LocalHeads(1, 4), heads], checks.random(2, LENGTH, 8), mask)
    heads.centroids.load_bias.assign([[0.5, 0.0, -0.5], [0.0, 0.0, 1.0]])
    ((group, first, clusters),) = call.clusters()
    assert group is heads and first == 1 and list(clusters) == sources
    query, _, key = call.groups[1][1]
    for vectors, found in zip((query, key), clusters.values()):
        vectors = vectors.numpy()
        kernel = heads.key_sets[-1].routed_kernel
        if kernel is not None:
            vectors = naive_convolution(vectors, kernel.numpy(), mask)
        vectors = vectors - vectors.mean(-1, keepdims=True)
        vectors /= np.sqrt((vectors**2).mean(-1, keepdims=True) + 1e-6)
        for row, head, i in np.ndindex(2, 2, LENGTH):
            scores = heads.centroids.centroids[head].numpy() @ vectors[row, head, i]
            nearest = (scores + heads.centroids.load_bias[head].numpy()).argmax()
            assert found[row, head, i] == (nearest if mask[row, i] else -1)


@pytest.mark.parametrize("assignment", ["nearest", "balanced"])
def test_clusters_of_grouped_queries(assignment):
    heads = layers.RoutingHeads(4, 3, 4, assignment=assignment)
    call = calls_of([heads], checks.random(2, LENGTH, 8), num_key_value_heads=2)
    ((_, (query, _, key), _),) = call.groups
    ((_, _, clusters),) = call.clusters()
    centroids = heads.centroids.centroids.numpy()
    centroids = np.repeat(centroids, 4 // len(centroids), axis=0)
    for vectors, found in zip((query, np.repeat(key, 2, axis=1)), clusters.values()):
        scores = naive_normalize(np.asarray(vectors)) @ centroids.swapaxes(1, 2)
        np.testing.assert_array_equal(found, scores.argmax(axis=-1))


def test_every_block_of_a_model_is_found_once():
    groups = [[layers.RoutingHeads(1, 2, 4), layers.LocalHeads(1, 4)], [layers.LocalHeads(2, 4)]]
    backbone = RoutingTransformerBackbone(20, 2, 8, 8, groups, remat=True)
    ids = keras.ops.ones([1, LENGTH], "int32")
    calls = attention_calls.attention_calls(backbone, {"token_ids": ids, "padding_mask": ids})
    assert [call.kinds for call in calls] == [[ROUTED, "Window"], ["Window"] * 2]
    assert [call.name for call in calls] == [f"transformer_block_{i}/attention" for i in range(2)]


def test_calls_of_other_threads_and_of_a_failed_call_are_not_observed():
    inputs = keras.Input([LENGTH, 8])
    layer = layers.MultiHeadAttention([layers.FullHeads(1)])
    model = keras.Model(inputs, layer(inputs, inputs))
    with pytest.raises(Exception, match="(?i)incompatible|shape"):
        attention_calls.attention_calls(model, keras.ops.ones([1, LENGTH, 7]))
    x = keras.ops.ones([1, LENGTH, 8])
    with attention_calls.observe_attention(model) as calls:
        thread = threading.Thread(target=layer, args=(x, x))
        thread.start()
        thread.join()
        assert calls == []
        layer(x, x)
    layer(x, x)
    assert [call.layer for call in calls] == [layer]
