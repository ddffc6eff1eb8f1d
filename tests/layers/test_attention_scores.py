import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    CompressiveHeads,
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    RoutingHeads,
)
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.t2t import T2TLocalHeads, T2TRoutingHeads
from tests.layers import checks

# Groups whose outputs contain terms other than weighted sums of the values.
WITH_VALUES_OF_THEIR_OWN = {
    "full": lambda: FullHeads(2, num_persistent_keys=3),
    "local": lambda: LocalHeads(2, 4, num_persistent_keys=3),
    "routing": lambda: RoutingHeads(2, 3, 4, num_persistent_keys=3),
    "local routing": lambda: LocalRoutingHeads(2, 3, 3, 4, num_persistent_keys=3),
    "local of the dialect": lambda: T2TLocalHeads(2, 4, max_relative_distance=3),
    "routing of the dialect": lambda: T2TRoutingHeads(2, 2, 4, 4, max_relative_distance=3),
}


@pytest.mark.parametrize("name", WITH_VALUES_OF_THEIR_OWN)
@pytest.mark.parametrize("value_dim", [5, 12, 17])
def test_terms_added_to_the_values_are_not_weights(name, value_dim):
    group = WITH_VALUES_OF_THEIR_OWN[name]()
    layer = MultiHeadAttention([LocalHeads(1, 4), group], 4, value_dim=value_dim)
    inputs, x = keras.Input([12, 6]), checks.random(2, 12, 6)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    (call,) = attention_calls(model, x)
    expected = tf.concat(list(call.weights()), axis=-1)
    _, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)
    (_, (query, value, key), options) = call.groups[1]
    moved = group(query, 0 * value, key, **options)
    found = scores[:, 1:] @ value
    np.testing.assert_allclose(found, group(query, value, key, **options) - moved, atol=1e-5)


def test_unknown_and_empty_lengths():
    layer = MultiHeadAttention([FullHeads(2, num_persistent_keys=3)], 4)
    layer.build((None, None, 6), (None, None, 6))

    @tf.function(input_signature=[tf.TensorSpec([None, None, 6])])
    def scores_of(x):
        return layer(x, x, return_attention_scores=True)[1]

    for length in (0, 3, 4, 9):
        x = tf.constant(checks.random(2, length, 6))
        found, expected = scores_of(x), layer(x, x, return_attention_scores=True)[1]
        assert found.shape == (2, 2, length, length)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("compression", ["conv", "mean"])
def test_a_compressed_memory_has_no_attention_weights(compression):
    layer = MultiHeadAttention(
        [LocalHeads(1, 4), CompressiveHeads(1, 4, 2, compression=compression)]
    )
    x, inputs = checks.random(2, 12, 6), keras.Input([12, 6])
    options = {"use_causal_mask": True, "return_attention_scores": True}
    for given in (x, inputs):
        with pytest.raises(ValueError, match="CompressiveHeads have no attention weights"):
            layer(given, given, **options)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    (call,) = attention_calls(model, x)
    with pytest.raises(ValueError, match="CompressiveHeads have no attention weights"):
        next(call.weights())
