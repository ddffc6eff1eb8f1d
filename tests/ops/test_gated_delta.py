import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import gated_delta_rule
from rt_keras.ops.gated_delta_decode import gated_delta_step
from tests.ops import checks, reference
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


@pytest.mark.parametrize("jit_compile", [False, True])
def test_no_positions(jit_compile):
    output, _ = checks.run(gated_delta_rule, arrays(0), {}, jit_compile=jit_compile)
    assert output.shape == (2, 2, 0, 5)


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


def test_a_step_of_padding_keeps_the_state():
    inputs, state = checks.tensors(arrays(1)), tf.constant(first_state())
    _, after = gated_delta_step(**inputs, state=state, count=tf.constant([0, 1]))
    np.testing.assert_array_equal(after[0], state[0])
    assert np.all(after[1] != state[1])


@pytest.mark.parametrize("ends", [[13], [1, 2, 9, 13], [4, 8, 13]], ids=str)
def test_chunks_are_one_pass(ends):
    inputs, outputs, state = checks.tensors(arrays(13)), [], None
    for start, end in zip([0, *ends], ends):
        chunk = {name: x[:, :, start:end] for name, x in inputs.items()}
        output, state = gated_delta_rule(
            **chunk, block_size=4, initial_state=state, return_state=True
        )
        outputs.append(output)
    expected, last = gated_delta_rule(**inputs, block_size=4, return_state=True)
    np.testing.assert_allclose(tf.concat(outputs, axis=2), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state, last, rtol=0, atol=1e-12)


def test_padding_on_the_right_keeps_the_state():
    inputs, counts = arrays(9), np.array([3, 7])
    mask = np.arange(9) < counts[:, None]
    options = {"block_size": 4, "initial_state": first_state(), "return_state": True}
    _, state = gated_delta_rule(**inputs, key_mask=mask, **options)
    for row, count in enumerate(counts):
        part = {name: x[:, :, :count] for name, x in inputs.items()}
        _, expected = gated_delta_rule(**part, **options)
        np.testing.assert_allclose(state[row], expected[row], rtol=0, atol=1e-12)


def test_decays_that_underflow():
    inputs = arrays(40)
    inputs["log_decay"] *= 100
    output, gradients = checks.run(gated_delta_rule, inputs, {}, dtype=tf.float32)
    np.testing.assert_allclose(output, reference.gated_delta(**inputs), rtol=0, atol=1e-4)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())


def test_equal_keys():
    # The powers of the matrix of their products are large, unlike those of random keys.
    inputs = arrays(64)
    inputs["key"][:] = inputs["key"][:, :, :1]
    inputs["log_decay"] *= 0
    output, _ = checks.run(gated_delta_rule, inputs, {}, dtype=tf.float32)
    np.testing.assert_allclose(output, reference.gated_delta(**inputs), rtol=0, atol=1e-4)


def test_bad_lengths():
    inputs = arrays(5)
    inputs |= {name: arrays(7)[name] for name in ("key", "value")}
    with pytest.raises(ValueError, match="as many keys as queries.*length 5, value of length 7"):
        gated_delta_rule(**inputs)
