import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import gated_delta_rule
from rt_keras.ops.gated_delta_decode import gated_delta_step
from tests.ops import checks, reference

VECTORS, GATES = ("query", "key", "value"), ("log_decay", "beta")


def arrays(length, batch=2, seed=0, depth=6):
    """Random inputs by name; keys have length 1."""
    inputs = checks.arrays(length, batch=batch, seed=seed, depth=depth)
    inputs["key"] /= np.linalg.norm(inputs["key"], axis=-1, keepdims=True)
    rng = np.random.default_rng(seed + 10)
    inputs["log_decay"] = -rng.exponential(size=(batch, 2, length))
    inputs["beta"] = rng.uniform(size=(batch, 2, length))
    return inputs


def first_state(batch=2):
    return np.random.default_rng(5).normal(size=(batch, 2, 6, 5))


def agrees_with_the_loop(inputs, **options):
    """Checks outputs to 1e-10, and gradients along directions to 1e-8.

    The loop is an analytic function, so a small imaginary step gives its exact derivative.
    """
    blocks = {"block_size": options.pop("block_size", 64)}
    output, gradients = checks.run(gated_delta_rule, inputs, {**options, **blocks})
    expected = reference.gated_delta(**inputs, **options)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-10)
    rng, cotangent = np.random.default_rng(2), np.random.default_rng(1).normal(size=output.shape)
    assert gradients.keys() == inputs.keys()
    for name, gradient in gradients.items():
        for _ in range(2):
            direction = rng.normal(size=inputs[name].shape)
            moved = {**inputs, name: inputs[name] + 1e-30j * direction}
            slope = np.sum(reference.gated_delta(**moved, **options) * cotangent).imag / 1e-30
            assert np.sum(gradient * direction) == pytest.approx(slope, abs=1e-8), name


@pytest.mark.parametrize("length, block_size", [(17, 4), (5, 8), (12, 1), (12, 4), (1, 64)])
def test_equation(length, block_size):
    agrees_with_the_loop(arrays(length), block_size=block_size)


@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(padding):
    mask = checks.mask(padding, 15)
    agrees_with_the_loop(arrays(15), block_size=4, query_mask=mask, key_mask=mask)


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
    agrees_with_the_loop(arrays(11), block_size=4, initial_state=first_state())


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


def test_steps_are_one_pass():
    inputs = checks.tensors(arrays(11))
    found, state = in_steps(inputs, tf.constant(first_state()))
    options = {"block_size": 4, "initial_state": first_state(), "return_state": True}
    expected, last = gated_delta_rule(**inputs, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state, last, rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("start", [1, 7, 8, 12])
def test_the_past_does_not_depend_on_the_future(start):
    inputs, others = arrays(14), arrays(14, seed=9)
    joined = {
        name: np.concatenate([x[:, :, :start], others[name][:, :, start:]], axis=2)
        for name, x in inputs.items()
    }
    found, expected = (gated_delta_rule(**x, block_size=4)[:, :, :start] for x in (joined, inputs))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("length", [0, 11])
def test_compiled(length):
    options = {"block_size": 4, "initial_state": first_state()}
    checks.holds_compiled(gated_delta_rule, arrays(length), **options)
    mask = checks.mask("scattered", length)
    checks.holds_compiled(gated_delta_rule, arrays(length), block_size=4, key_mask=mask)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    def equation(block_size, **given):
        return reference.gated_delta(**given)

    inputs = arrays(13)
    checks.holds_in_lower_precision(gated_delta_rule, equation, inputs, dtype, atol, block_size=4)
    _, state = gated_delta_rule(**checks.tensors(inputs, dtype), return_state=True)
    assert state.dtype == tf.float32


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


def test_unknown_shapes():
    def inputs(length):
        found = arrays(length, batch=1 + length % 3)
        return {**found, "key_mask": checks.mask("scattered", length, 1 + length % 3)}

    checks.holds_for_unknown_shapes(gated_delta_rule, (8, 0, 5, 13), inputs, block_size=4)


def test_no_tensor_has_all_pairs_of_positions():
    length, block_size = 2048, 32
    inputs = {name: x[:1, :1] for name, x in arrays(length).items()}
    largest = checks.largest_tensor(gated_delta_rule, inputs, block_size=block_size)
    assert largest <= 2 * block_size * length


def test_bad_lengths():
    inputs = arrays(5)
    inputs |= {name: arrays(7)[name] for name in ("key", "value")}
    with pytest.raises(ValueError, match="as many keys as queries.*length 5, value of length 7"):
        gated_delta_rule(**inputs)
