import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FeedForward
from tests.layers import checks
from tests.temporaries import temporaries


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def approximate_gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


EQUATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "geglu": lambda x: gelu(x[..., :7]) * x[..., 7:],
    "geglu_approximate": lambda x: approximate_gelu(x[..., :7]) * x[..., 7:],
    "tanh": np.tanh,
}


@pytest.mark.parametrize("activation", EQUATIONS)
def test_equation(activation):
    layer = FeedForward(7, activation=activation, dtype="float64")
    x = checks.random(2, 3, 4, dtype="float64")
    layer.build(x.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.weights])
    first, first_bias, second, second_bias = layer.get_weights()
    assert first.shape == (4, 14 if activation.startswith("geglu") else 7)
    expected = EQUATIONS[activation](x @ first + first_bias) @ second + second_bias
    # Keras's gelu uses a float32 square root of 2.
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=1e-6)
    assert layer.compute_output_shape(x.shape) == x.shape


def test_the_approximation_is_another_function():
    layers = [FeedForward(7, activation) for activation in ("geglu", "geglu_approximate")]
    x = 3 * checks.random(2, 3, 4)
    for layer in layers:
        layer.build(x.shape)
        layer.set_weights(layers[0].get_weights())
    assert 1e-5 < checks.largest_difference(layers[0](x), layers[1](x)) < 1e-2


def test_without_biases():
    layer = FeedForward(7, "relu", use_bias=False)
    x = checks.random(2, 3, 4)
    found = layer(x)
    first, second = layer.get_weights()
    expected = np.maximum(x @ first, 0) @ second
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    checks.config_makes_an_equal_layer(layer, x)


def test_the_two_layers_have_different_initial_values():
    layer = FeedForward(4, "relu", kernel_initializer="he_normal")
    layer.build((None, None, 4))
    first, _, second, _ = layer.get_weights()
    assert first.shape == second.shape
    assert np.any(first != second)


def test_dropout_only_in_training():
    layer = FeedForward(64, dropout=0.5)
    x = checks.random(2, 3, 4)
    np.testing.assert_array_equal(layer(x), layer(x, training=False))
    assert checks.largest_difference(layer(x, training=True), layer(x)) > 1e-3


def test_mask_passes():
    tokens = keras.layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 0]]))
    assert checks.mask_of(FeedForward(4)(tokens)) == [[True, False]]


def test_trains_every_weight():
    checks.trains_every_weight(FeedForward(6), checks.random(2, 3, 4), training=True)


def test_config():
    x = checks.random(2, 3, 4)
    checks.config_makes_an_equal_layer(
        FeedForward(6, "relu", 0.2, kernel_initializer="he_normal"), x
    )
    checks.config_makes_an_equal_layer(FeedForward(6, "geglu_approximate", chunk_size=2), x)


def test_mixed_bfloat16():
    layer = FeedForward(6, dtype="mixed_bfloat16")
    assert layer(checks.random(2, 3, 4)).dtype == "bfloat16"
    assert {weight.dtype for weight in layer.trainable_variables} == {"float32"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"intermediate_dim": 0}, "intermediate_dim must be a positive integer"),
        ({"activation": "geglue"}, "geglue"),
        ({"dropout": 1.5}, "1.5"),
        ({"chunk_size": 0}, "chunk_size must be a positive integer"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        FeedForward(**{"intermediate_dim": 4, **options})


# Chunks.


@pytest.mark.parametrize("length", [1, 4, 8, 11])
@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
def test_chunks_do_not_change_outputs(length, dtype):
    x = tf.constant(checks.random(2, length, 8))
    layers = [FeedForward(6, chunk_size=size, dtype=dtype) for size in (None, 4)]
    found = []
    for layer in layers:
        layer.build(x.shape)
        layer.set_weights(layers[0].get_weights())
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
            loss = tf.reduce_sum(tf.sin(3 * tf.cast(output, "float32")))
        found.append([output, *tape.gradient(loss, [x, *[w.value for w in layer.weights]])])
    tolerance = 0.05 if dtype == "mixed_bfloat16" else 1e-6
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        checks.close(tf.cast(a, "float64"), tf.cast(b, "float64"), tolerance)


def test_chunks_have_different_dropout_masks_repeated_in_the_gradient():
    layer = FeedForward(64, "relu", dropout=0.5, chunk_size=4, use_bias=False)
    layer.build([1, 8, 3])
    x = tf.ones([1, 8, 3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = layer(x, training=True)
        loss = tf.reduce_sum(output)
    assert checks.largest_difference(output[:, :4], output[:, 4:]) > 1e-2
    assert checks.largest_difference(layer(x, training=True), output) > 1e-2
    # The network is linear for active ReLUs.
    found = tf.reduce_sum(tape.gradient(loss, x) * x)
    assert float(found) == pytest.approx(float(loss), abs=1e-3)


SCRIPT = """
import tensorflow as tf
from rt_keras.layers import FeedForward

for size in (None, 64):
    layer = FeedForward(512, "relu", chunk_size=size)
    layer.build([1, 1024, 8])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) ** 2)
        return tape.gradient(loss, [x, *[weight.value for weight in layer.weights]])
    step.__name__ = f"step_{size}"
    tf.function(step, jit_compile=True)(tf.ones([1, 1024, 8]))
"""


@pytest.mark.end_to_end
def test_only_one_chunk_stores_its_activations():
    found = temporaries(SCRIPT)
    activations = 1024 * 512 * 4
    assert found["step_None"] > activations
    assert found["step_64"] < activations / 4
