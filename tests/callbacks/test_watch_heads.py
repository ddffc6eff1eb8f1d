import keras
import numpy as np
import pytest

from rt_keras.callbacks import CentroidEMA, WatchHeads
from rt_keras.layers import FullHeads, LocalHeads, MultiHeadAttention, RoutingHeads
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.head_divergence import head_divergences
from tests.layers import checks


@pytest.mark.weekly
def test_the_first_pair_of_each_two_kinds_is_compared():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input([12, 8])
    for groups in ([RoutingHeads(2, 3, 4), LocalHeads(2, 4)], [FullHeads(1)]):
        x += MultiHeadAttention(groups, key_dim=4)(x, x, use_causal_mask=True)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    x = checks.random(2, 12, 8)
    history = model.fit(x, x, verbose=0, callbacks=[CentroidEMA(), WatchHeads(x[:1])]).history
    assert 0 <= history["routing_0_stable"][0] <= 1
    assert {name for name in history if name.startswith("divergence")} == {
        "divergence_0_LocalHeads_LocalHeads",
        "divergence_0_LocalHeads_RoutingHeads",
        "divergence_0_RoutingHeads_RoutingHeads",
    }
    call = attention_calls(model, checks.random(2, 12, 8)[:1])[0]
    expected = np.nanmean(head_divergences(call, [(2, 3), (0, 2), (0, 1)]), axis=(1, 2))
    found = [history[name][0] for name in sorted(history) if name.startswith("divergence")]
    np.testing.assert_allclose(found, expected, atol=1e-6)
