import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, TransformerBlock
from tests.layers import checks
from tests.processes import temporaries

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

X, ENCODED = checks.random(2, 9, 8), checks.random(2, 7, 8, seed=1)


def blocks(dtype=None, **options):
    """Returns a block without and one with rematerialization, with equal weights and seeds."""
    found = []
    for remat in (False, True):
        keras.utils.set_random_seed(0)
        routing = {"dtype": dtype, "commitment_weight": 0.1}
        block = TransformerBlock(
            [LocalHeads(1, 4, dtype=dtype), RoutingHeads(1, 3, 4, **routing)],
            16,
            cross_head_groups=[
                FullHeads(1, dtype=dtype),
                RoutingHeads(1, 3, 4, assignment="balanced", **routing),
            ],
            shift_tokens=True,
            dtype=dtype,
            remat=remat,
            **options,
        )
        block.build(X.shape)
        found.append(block)
    return found


def step(block, padded=True):
    """Returns output, losses and gradients of all inputs and weights in one training call."""
    x, encoded = tf.constant(X), tf.constant(ENCODED)
    inputs = [x, encoded]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = block(
            x,
            padding_mask=checks.padding(2, 9) if padded else None,
            use_causal_mask=True,
            encoder_outputs=encoded,
            encoder_padding_mask=checks.padding(2, 7) if padded else None,
            training=True,
        )
        losses = block.losses
        loss = tf.reduce_sum(tf.sin(3 * tf.cast(output, "float32"))) + tf.add_n(losses)
    weights = [variable.value for variable in block.trainable_variables]
    return output, losses, tape.gradient(loss, [*inputs, *weights])


def assert_equal(found, expected):
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.3, "conv_kernel_size": 3}, {"normalize_first": False, "activation": "relu"}],
)
def test_outputs_losses_gradients_and_state_equal_those_without(options):
    plain, remat = blocks(**options)
    for padded in (True, False):
        expected = step(plain, padded)
        assert len(expected[1]) == 2 and all(loss > 1e-3 for loss in expected[1])
        assert_equal(step(remat, padded), expected)
        # Statistics count once, and the same number of random numbers is drawn.
        for a, b in zip(remat.variables, plain.variables, strict=True):
            assert a.name == b.name
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=a.path)
    assert float(remat.attention.head_groups[1].member_batches.value) == 2


@pytest.mark.slow
def test_frozen_weights_do_not_change():
    plain, remat = blocks("mixed_bfloat16")
    for block in (plain, remat):
        block.trainable = False
    weights = [np.asarray(x) for x in remat.variables if "dense" in x.path]
    found = step(remat)
    assert found[0].dtype == tf.bfloat16
    assert_equal(found[0], step(plain)[0])
    for before, variable in zip(weights, [x for x in remat.variables if "dense" in x.path]):
        np.testing.assert_array_equal(variable, before)


SCRIPT = """
import keras
import tensorflow as tf
from rt_keras.layers import LocalHeads, TransformerBlock

def compiled(remat, layers):
    keras.utils.set_random_seed(0)
    options = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
    blocks = [
        TransformerBlock([LocalHeads(1, 32)], 64, activation="relu", remat=remat, **options)
        for _ in range(layers)
    ]
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for block in blocks:
                y = block(y, training=True)
        return y, tape.gradient(y, x)
    x = tf.random.stateless_normal([1, 512, 32], [0, 0])
    for block in blocks:
        block.build(x.shape)
    step.__name__ = f"step_{remat}_{layers}"
    return tf.function(step, jit_compile=True)(x)

compiled(True, 1)
for found, expected in zip(compiled(True, 3), compiled(False, 3)):
    tf.debugging.assert_near(found, expected, 1e-5, 1e-5)
"""


@pytest.mark.weekly
def test_each_additional_block_stores_only_its_inputs():
    found = temporaries(SCRIPT)
    inputs = 512 * 32 * 4
    assert found["step_True_3"] - found["step_True_1"] < 2 * 1.5 * inputs
    assert found["step_False_3"] - found["step_True_3"] > 2 * 8 * inputs
