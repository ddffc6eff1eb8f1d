import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LocalHeads, ReversibleBlocks, RoutingHeads, TransformerBlock
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

X = checks.random(2, 9, 8)


def make_layer(**options):
    keras.utils.set_random_seed(0)
    blocks = [
        TransformerBlock(
            [LocalHeads(1, 4), RoutingHeads(1, 3, 4, commitment_weight=0.1)],
            16,
            shift_tokens=True,
            **options,
        )
        for _ in range(2)
    ]
    layer = ReversibleBlocks(blocks)
    layer.build(X.shape)
    return layer


def plain(layer, x, **options):
    """Computes the same function without a custom gradient."""
    first = second = tf.cast(x, layer.variable_dtype)
    for block in layer.blocks:
        attend, feed_forward = block.branches(**options)
        first += tf.cast(attend(second), first.dtype)
        second += tf.cast(feed_forward(first), first.dtype)
    return (first + second) / 2


def step(layer, function):
    """Returns output, losses and gradients of the inputs and weights in one training call."""
    x = tf.constant(X)
    options = {"padding_mask": checks.padding(2, 9)}
    with tf.GradientTape() as tape:
        tape.watch(x)
        layer._clear_losses()
        output = function(x, use_causal_mask=True, training=True, **options)
        losses = layer.losses
        loss = tf.reduce_sum(tf.sin(3 * tf.cast(output, "float32")))
        loss += tf.add_n([tf.cast(x, "float32") for x in losses])
    weights = [variable.value for variable in layer.trainable_variables]
    return output, losses, tape.gradient(loss, [x, *weights])


def assert_equal(found, expected, tolerance):
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_gradients_equal_those_without_custom_gradient():
    layers = [make_layer(dropout=0.3) for _ in range(2)]
    expected = step(layers[0], lambda x, **options: plain(layers[0], x, **options))
    assert len(expected[1]) == 2 and all(loss > 1e-3 for loss in expected[1])
    assert_equal(step(layers[1], layers[1]), expected, 1e-4)
    # Statistics count once, and the same number of random numbers is drawn.
    for a, b in zip(layers[1].variables, layers[0].variables, strict=True):
        assert a.name == b.name
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=a.path)
