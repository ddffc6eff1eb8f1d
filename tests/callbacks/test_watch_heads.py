import keras
import numpy as np
import pytest

from rt_keras.callbacks import CentroidEMA, WatchHeads
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.layers import (
    CompressiveHeads,
    FullHeads,
    LocalHeads,
    MultiHeadAttention,
    RoutingHeads,
)
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.head_divergence import head_divergences
from tests.layers import checks


@pytest.fixture
def model():
    """Two layers: routing and local heads, and one full head."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input([12, 8])
    x = inputs
    for groups in ([RoutingHeads(2, 3, 4), LocalHeads(2, 4)], [FullHeads(1)]):
        x += MultiHeadAttention(groups, key_dim=4)(x, x, use_causal_mask=True)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    return model


def fit(model, epochs, *callbacks):
    x = checks.random(2, 12, 8)
    watch = [CentroidEMA(decay=0.0), *callbacks, WatchHeads(x[:1])]
    return model.fit(x, x, epochs=epochs, verbose=0, callbacks=watch).history


def test_the_first_pair_of_each_two_kinds_is_compared(model):
    history = fit(model, 1)
    assert {name for name in history if name.startswith("divergence")} == {
        "divergence_0_LocalHeads_LocalHeads",
        "divergence_0_LocalHeads_RoutingHeads",
        "divergence_0_RoutingHeads_RoutingHeads",
    }
    call = attention_calls(model, checks.random(2, 12, 8)[:1])[0]
    expected = np.nanmean(head_divergences(call, [(2, 3), (0, 2), (0, 1)]), axis=(1, 2))
    found = [history[name][0] for name in sorted(history) if name.startswith("divergence")]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_clusters_that_stay_and_clusters_that_move(model):
    heads = routing_heads(model)[0]
    centroids = heads.centroids.numpy()
    moved = centroids.copy()
    # The clusters of the first head are permuted.
    moved[0] = np.roll(moved[0], 1, axis=0)

    def place(epoch, logs):
        heads.centroids.assign(moved if epoch == 1 else centroids)
        heads.load_bias.assign(np.zeros(heads.load_bias.shape))

    history = fit(model, 2, keras.callbacks.LambdaCallback(on_epoch_end=place))
    assert history["routing_0_stable"] == [1.0, 0.5]


@pytest.mark.end_to_end
def test_a_run_that_is_continued_compares_with_where_it_stopped(model):
    whole = keras.models.clone_model(model)
    whole.set_weights(model.get_weights())
    whole.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    twice = fit(model, 1)["routing_0_stable"] + fit(model, 1)["routing_0_stable"]
    assert fit(whole, 2)["routing_0_stable"] == twice
    assert twice[0] < 1


def test_layers_that_are_not_trained_are_not_logged(model):
    routing_heads(model)[0].trainable = False
    history = fit(model, 1)
    assert "divergence_0_LocalHeads_RoutingHeads" in history
    assert "routing_0_stable" not in history


def test_heads_without_weights_of_single_keys_are_refused_before_the_first_step():
    inputs = keras.Input([12, 8])
    attention = MultiHeadAttention([LocalHeads(1, 4), CompressiveHeads(1, 4, 2)])
    model = keras.Model(inputs, attention(inputs, inputs, use_causal_mask=True))
    model.compile("sgd", "mse")
    x = checks.random(2, 12, 8)
    with pytest.raises(ValueError, match="CompressiveHeads have no attention weights"):
        model.fit(x, x, verbose=0, callbacks=[WatchHeads(x[:1])])
    assert model.optimizer.iterations == 0
