import numpy as np
import tensorflow as tf

from rt_keras.ops import gated_delta_rule
from rt_keras.ops.gated_delta import gated_delta_step, naive_gated_delta_rule
from tests.ops import checks
from tests.ops.cases import delta_arrays as arrays
from tests.ops.cases import gated_delta


def first_state():
    return np.random.default_rng(5).normal(size=(2, 2, 6, 5))


def test_the_content_of_padding_does_not_matter():
    mask, inputs = checks.mask("right", 15), arrays(15)
    options = {"block_size": 4, "query_mask": mask, "key_mask": mask}
    expected = gated_delta_rule(**inputs, **options)
    moved = {
        name: np.where(mask[:, None, :, None] if x.ndim > 3 else mask[:, None], x, np.nan)
        for name, x in inputs.items()
    }
    np.testing.assert_array_equal(gated_delta_rule(**moved, **options), expected)


def test_a_first_state():
    options = {"block_size": 4, "initial_state": first_state()}
    checks.holds(gated_delta_rule, gated_delta, arrays(11), **options)
    checks.holds_compiled(gated_delta_rule, arrays(11), **options)


def test_gradients_reach_the_states():
    inputs, first = checks.tensors(arrays(11)), tf.constant(first_state())
    weights = np.random.default_rng(3).normal(size=first.shape)
    with tf.GradientTape() as tape:
        tape.watch(first)
        output, state = gated_delta_rule(
            **inputs, block_size=4, initial_state=first, return_state=True
        )
        loss = tf.reduce_sum(tf.sin(output)) + tf.reduce_sum(weights * state)
    gradient = tape.gradient(loss, first)
    # Each position as a separate step, differentiated by TensorFlow alone.
    with tf.GradientTape() as tape:
        tape.watch(first)
        outputs, after = in_steps(inputs, first)
        loss = tf.reduce_sum(tf.sin(outputs)) + tf.reduce_sum(weights * after)
    np.testing.assert_allclose(gradient, tape.gradient(loss, first), rtol=0, atol=1e-12)
    np.testing.assert_allclose(state, after, rtol=0, atol=1e-12)


def in_steps(inputs, state):
    """The outputs of one step per position, and the last state."""
    outputs = []
    for i in range(inputs["query"].shape[2]):
        one = {name: x[:, :, i : i + 1] for name, x in inputs.items()}
        output, state = gated_delta_step(**one, state=state)
        outputs.append(output)
    return tf.concat(outputs, axis=2), state


def test_decays_that_underflow():
    inputs = arrays(40)
    inputs["log_decay"] *= 100
    output, gradients = checks.run(gated_delta_rule, inputs, {}, dtype=tf.float32)
    np.testing.assert_allclose(output, naive_gated_delta_rule(**inputs), rtol=0, atol=1e-4)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())


def test_equal_keys():
    # The powers of the matrix of their products are large, unlike those of random keys.
    inputs = arrays(64)
    inputs["key"][:] = inputs["key"][:, :, :1]
    inputs["log_decay"] *= 0
    output, _ = checks.run(gated_delta_rule, inputs, {}, dtype=tf.float32)
    np.testing.assert_allclose(output, naive_gated_delta_rule(**inputs), rtol=0, atol=1e-4)
