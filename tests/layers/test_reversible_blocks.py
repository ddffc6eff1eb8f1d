import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, ReversibleBlocks, RoutingHeads, TransformerBlock
from tests.layers import checks
from tests.temporaries import temporaries

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

X = checks.random(2, 9, 8)


def make_layer(dtype=None, num_blocks=3, **options):
    keras.utils.set_random_seed(0)
    blocks = [
        TransformerBlock(
            [
                LocalHeads(1, 4, dtype=dtype),
                RoutingHeads(1, 3, 4, commitment_weight=0.1, dtype=dtype),
            ],
            16,
            shift_tokens=True,
            dtype=dtype,
            **options,
        )
        for _ in range(num_blocks)
    ]
    layer = ReversibleBlocks(blocks, dtype=dtype)
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


def step(layer, function, padded=True):
    """Returns output, losses and gradients of the inputs and weights in one training call."""
    x = tf.constant(X)
    options = {"padding_mask": checks.padding(2, 9) if padded else None}
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


@pytest.mark.parametrize("padded", [True, pytest.param(False, marks=pytest.mark.end_to_end)])
@pytest.mark.parametrize("options", [{"conv_kernel_size": 3}, {"dropout": 0.3}], ids=str)
def test_gradients_equal_those_without_custom_gradient(options, padded):
    layers = [make_layer(**options) for _ in range(2)]
    expected = step(layers[0], lambda x, **options: plain(layers[0], x, **options), padded)
    assert len(expected[1]) == 3 and all(loss > 1e-3 for loss in expected[1])
    assert_equal(step(layers[1], layers[1], padded), expected, 1e-4)
    # Statistics count once, and the same number of random numbers is drawn.
    for a, b in zip(layers[1].variables, layers[0].variables, strict=True):
        assert a.name == b.name
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=a.path)


@pytest.mark.end_to_end
def test_in_a_graph():
    layers = [make_layer(num_blocks=2, dropout=0.3) for _ in range(2)]
    expected = step(layers[0], layers[0])
    found = tf.function(lambda: step(layers[1], layers[1]))()
    assert_equal(found, expected, 1e-4)


def test_mixed_precision():
    layer = make_layer("mixed_bfloat16")
    output, _, gradients = step(layer, layer)
    assert output.dtype == tf.bfloat16
    expected = step(layer, lambda x, **options: plain(layer, x, **options))
    assert_equal(output, expected[0], 0.05)
    for found, wanted in zip(gradients[1:], expected[2][1:], strict=True):
        assert found.dtype == tf.float32
        assert checks.largest_difference(found, wanted) <= 0.1 * (1 + np.abs(wanted).max())


def test_frozen():
    layer = make_layer()
    layer.trainable = False
    _, _, (gradient,) = step(layer, layer)
    _, _, (expected,) = step(layer, lambda x, **options: plain(layer, x, **options))
    assert_equal(gradient, expected, 1e-4)


@pytest.mark.end_to_end
def test_saved_and_loaded(tmp_path):
    inputs = keras.Input([9, 8])
    layer = ReversibleBlocks([TransformerBlock([LocalHeads(2, 4)], 16) for _ in range(2)])
    checks.saves_and_loads(keras.Model(inputs, layer(inputs)), X, tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"normalize_first": False}, "pre-norm"),
        ({"cross_head_groups": [FullHeads(2)]}, "attend to an encoder"),
    ],
)
def test_other_blocks_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReversibleBlocks([TransformerBlock([LocalHeads(2, 4)], 16, **options)])


SCRIPT = """
import tensorflow as tf
from rt_keras.layers import LocalHeads, ReversibleBlocks, TransformerBlock

for count in (2, 5):
    options = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
    layer = ReversibleBlocks(
        [TransformerBlock([LocalHeads(1, 32)], 64, activation="relu", **options)
         for _ in range(count)]
    )
    layer.build([1, 512, 32])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, [x, *[weight.value for weight in layer.trainable_variables]])
    step.__name__ = f"step_{count}"
    tf.function(step, jit_compile=True)(tf.ones([1, 512, 32]))
"""


@pytest.mark.end_to_end
def test_memory_does_not_grow_with_the_number_of_blocks():
    found = temporaries(SCRIPT)
    # Three more blocks add the gradients of their weights, but less than one stream each.
    stream = 512 * 32 * 4
    assert found["step_5"] - found["step_2"] < 2 * stream
