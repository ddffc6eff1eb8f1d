import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import MultiHeadAttention
from rt_keras.t2t import T2TClusterStridedHeads, T2THashedHeads, T2TLocalHeads, T2TRoutingHeads
from rt_keras.t2t.token_bias import token_bias_of
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

GROUPS = [
    lambda **kwargs: T2TLocalHeads(2, 4, **kwargs),
    lambda **kwargs: T2TRoutingHeads(2, 3, 4, 5, **kwargs),
    lambda **kwargs: T2TClusterStridedHeads(2, 3, 4, 5, **kwargs),
    lambda **kwargs: T2THashedHeads(2, 4, 4, 5, **kwargs),
]


@pytest.mark.parametrize("make", GROUPS)
def test_who_takes_it_and_by_which_weight(make):
    x, bias = checks.random(1, 2, 9, 6), checks.random(1, 9, seed=1)
    none, fixed, trainable = (make(token_bias=kind) for kind in (None, "fixed", "trainable"))
    for group in (none, fixed, trainable):
        group.build(x.shape, x.shape)
        weights = [x for x in group.weights if x is not group.token_bias_weight]
        for weight, source in zip(weights, none.weights, strict=True):
            weight.assign(source)
    assert none.token_bias_weight is None and not fixed.trainable_variables
    assert trainable.trainable_variables == [trainable.token_bias_weight]
    plain = none(x, x, x)
    np.testing.assert_array_equal(fixed(x, x, x), plain)
    with token_bias_of(encoder=bias):
        np.testing.assert_array_equal(none(x, x, x), plain)
        assert checks.largest_difference(fixed(x, x, x), plain) > 1e-2
        trainable.token_bias_weight.assign(-2.0)
        found = trainable(x, x, x)
        checks.trains_every_weight(trainable, x, x, x)
    with token_bias_of(encoder=-2 * bias):
        checks.close(found, fixed(x, x, x), 1e-6)


@pytest.mark.parametrize("make", GROUPS)
def test_its_weight_comes_before_those_of_the_kind(make):
    # Saved weights are numbered in this order.
    group = make(max_relative_distance=2, token_bias="fixed")
    group.build((None, 2, 9, 6), (None, 2, 9, 6))
    assert group.non_trainable_variables[0] is group.token_bias_weight
    group = make(max_relative_distance=2, token_bias="trainable")
    group.build((None, 2, 9, 6), (None, 2, 9, 6))
    assert group.trainable_variables[-1] is group.token_bias_weight


def test_causal_attention_has_the_decoders_and_all_other_the_encoders():
    group, x = T2TLocalHeads(2, 4, token_bias="fixed"), checks.random(1, 2, 9, 6)
    bias = checks.random(1, 9, seed=1)
    for own, other in (("encoder", "decoder"), ("decoder", "encoder")):
        causal = own == "decoder"
        plain = group(x, x, x, use_causal_mask=causal)
        with token_bias_of(**{own: bias}):
            assert checks.largest_difference(group(x, x, x, use_causal_mask=causal), plain) > 1e-2
            with token_bias_of(**{other: bias}):
                np.testing.assert_array_equal(group(x, x, x, use_causal_mask=causal), plain)


def test_no_bias_is_left_after_an_error():
    group, x = T2TLocalHeads(2, 4, token_bias="fixed"), checks.random(1, 2, 9, 6)
    plain = group(x, x, x)
    with pytest.raises(ZeroDivisionError), token_bias_of(encoder=checks.random(1, 9)):
        raise ZeroDivisionError
    np.testing.assert_array_equal(group(x, x, x), plain)


def test_in_a_model_and_in_a_traced_function():
    inputs = keras.Input((9, 6))
    layer = MultiHeadAttention([T2TLocalHeads(2, 4, token_bias="fixed")], 3)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    x, bias = checks.random(2, 9, 6), checks.random(2, 9)

    @tf.function
    def call(x, bias):
        with token_bias_of(decoder=bias):
            return model(x)

    with token_bias_of(decoder=bias):
        expected = layer(x, x, use_causal_mask=True)
    assert checks.largest_difference(expected, model(x)) > 1e-3
    for factor in (1, -1):
        with token_bias_of(decoder=factor * bias):
            expected = layer(x, x, use_causal_mask=True)
        np.testing.assert_allclose(call(x, factor * bias), expected, rtol=0, atol=1e-6)


def test_mixed_bfloat16():
    group = T2TLocalHeads(2, 4, token_bias="trainable", dtype="mixed_bfloat16")
    x = checks.random(1, 2, 9, 6)
    with token_bias_of(encoder=checks.random(1, 9)):
        assert group(x, x, x).dtype == "bfloat16"
    assert group.token_bias_weight.dtype == "float32"


def test_bad_token_bias():
    with pytest.raises(ValueError, match="token_bias must be one of .* Received: token_bias=True"):
        T2TLocalHeads(2, 4, token_bias=True)
