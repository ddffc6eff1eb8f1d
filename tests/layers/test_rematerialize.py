import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, TransformerBlock
from tests.layers import checks
from tests.models.checks import same
from tests.processes import temporaries

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

X, ENCODED = checks.random(2, 9, 8), checks.random(2, 7, 8, seed=1)


def make_block(remat, dtype=None, **options):
    """A block with the weights and seeds of each other one."""
    keras.utils.set_random_seed(0)
    routing = {"dtype": dtype, "commitment_weight": 0.1}
    block = TransformerBlock(
        [LocalHeads(1, 4, dtype=dtype), RoutingHeads(1, 3, 4, **routing)],
        16,
        [FullHeads(1, dtype=dtype), RoutingHeads(1, 3, 4, assignment="balanced", **routing)],
        shift_tokens=True,
        dtype=dtype,
        remat=remat,
        **options,
    )
    block.build(X.shape)
    return block


def step(block, padded=True):
    """Returns output, losses and gradients of all inputs and weights in one training call."""
    inputs, masks = [tf.constant(X), tf.constant(ENCODED)], {}
    if padded:
        masks["padding_mask"] = checks.padding(2, 9)
        masks["encoder_padding_mask"] = checks.padding(2, 7)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        options = {"use_causal_mask": True, "encoder_outputs": inputs[1], "training": True}
        output = block(inputs[0], **options, **masks)
        losses = block.losses
        loss = tf.reduce_sum(tf.sin(3 * tf.cast(output, "float32"))) + tf.add_n(losses)
    weights = [variable.value for variable in block.trainable_variables]
    return output, losses, tape.gradient(loss, [*inputs, *weights], unconnected_gradients="zero")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.3, "conv_kernel_size": 3}, {"normalize_first": False, "activation": "relu"}],
)
def test_outputs_losses_gradients_and_state_equal_those_without(options):
    plain, remat = (make_block(x, **options) for x in (False, True))
    for padded in (True, False):
        expected = step(plain, padded)
        assert len(expected[1]) == 2 and all(loss > 1e-3 for loss in expected[1])
        same(step(remat, padded), expected, 1e-4)
        # Statistics count once, and the same number of random numbers is drawn.
        same(remat.variables, plain.variables, 1e-5)
    assert float(remat.attention.head_groups[1].centroids.member_batches.value) == 2


@pytest.mark.slow
def test_frozen_weights_do_not_change():
    plain, remat = (make_block(x, "mixed_bfloat16") for x in (False, True))
    plain.trainable = remat.trainable = False
    weights = [x for x in remat.variables if "dense" in x.path]
    before, found = [np.array(x) for x in weights], step(remat)
    assert found[0].dtype == tf.bfloat16
    same(found[0], step(plain)[0], 1e-5)
    same(weights, before)


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
