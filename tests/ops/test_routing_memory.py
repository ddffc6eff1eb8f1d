import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.naive import naive_softmax
from rt_keras.ops.nearest.assign import Assignment
from rt_keras.ops.routing_memory import EVICTIONS, empty_memory, memory_chunk, naive_memory
from tests.ops import checks

SIZES = {"memory_length": 5, "block_size": 4}
OPTIONS = {"window_size": 2, "memory_keys": 3}


def arrays(length=40, **options):
    given = checks.arrays(length, clusters=2, load_bias=True, **options)
    return {**given, "scale": np.array([0.5, 2.0])}


def with_assignment(inputs):
    """The inputs as tensors, as `memory_chunk` takes them."""
    tensors = checks.tensors(inputs)
    learnt = {name: tensors.pop(name) for name in ("centroids", "load_bias", "scale")}
    return {**tensors, "assignment": Assignment(**learnt)}


def new_memory(inputs, eviction):
    query, value = (tf.constant(inputs[name]) for name in ("query", "value"))
    return empty_memory(query, value, 2, eviction=eviction, **SIZES)


def chunk(inputs, memory, position=0, rows=slice(None), read=memory_chunk, **options):
    given = with_assignment(inputs)
    given |= {name: given[name][:, :, rows] for name in ("query", "key", "value")}
    return read(**given, memory=memory, position=position, **{**OPTIONS, **options})


def naive(inputs, eviction, survivors):
    """The outputs, logsumexps and memories of one row and head, position by position."""
    seen, memories = naive_memory(
        **inputs, **OPTIONS, **SIZES, eviction=eviction, survivors=survivors
    )
    nothing = 0 * inputs["value"][0]
    outputs = [naive_softmax(np.array(x), True) @ y if x else nothing for x, y in seen]
    logsumexps = [np.log(np.sum(np.exp(x))) if x else -1e30 for x, _ in seen]
    return np.array(outputs), np.array(logsumexps), memories


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_equation(eviction):
    inputs = arrays()
    numbers = {}
    memory = new_memory(inputs, eviction)
    for block in range(0, 40, 4):
        rows = slice(block, block + 4)
        memory = chunk(inputs, memory, block, rows, eviction=eviction)[2]
        numbers[block + 3] = memory["number"].numpy()
    output, logsumexp, memory = chunk(inputs, new_memory(inputs, eviction), eviction=eviction)
    for row, head in np.ndindex(*inputs["query"].shape[:2]):
        one = {name: inputs[name][row, head] for name in ("query", "key", "value")}
        one |= {name: inputs[name][head] for name in ("centroids", "load_bias", "scale")}
        kept = {i: x[row, head] for i, x in numbers.items()}
        expected = naive(one, eviction, kept)
        np.testing.assert_allclose(output[row, head], expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(logsumexp[row, head], expected[1], rtol=0, atol=1e-12)
        for cluster, members in enumerate(expected[2]):
            found = sorted(memory["number"][row, head, cluster].numpy())
            expected_numbers = [member["number"] for member in members]
            assert [x for x in found if x >= 0] == sorted(expected_numbers)


@pytest.mark.slow
def test_gradients_are_those_of_a_fixed_memory():
    inputs = arrays(16)
    _, _, memory = chunk(inputs, new_memory(inputs, "oldest"), 0, slice(0, 12))
    query = tf.constant(inputs["query"][:, :, 12:])

    def loss(query):
        given = {**inputs, "query": np.zeros([2, 2, 4, 6])}
        given |= {name: inputs[name][:, :, 12:] for name in ("key", "value")}
        tensors = {**with_assignment(given), "query": query}
        output, logsumexp, _ = memory_chunk(**tensors, memory=memory, position=12, **OPTIONS)
        seen = tf.where(logsumexp > -1e29, logsumexp, 0)
        return tf.reduce_sum(tf.sin(3 * output)) + tf.reduce_sum(tf.cos(seen))

    with tf.GradientTape() as tape:
        tape.watch(query)
        total = loss(query)
    found, step = tape.gradient(total, query).numpy(), 1e-6
    rng = np.random.default_rng(0)
    for place in rng.integers([[2, 2, 4, 6]] * 20):
        moved = np.zeros(query.shape)
        moved[tuple(place)] = step
        slope = (loss(query + moved) - loss(query - moved)) / (2 * step)
        np.testing.assert_allclose(found[tuple(place)], slope, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_compiled_gradients_of_several_blocks():
    inputs = arrays(16)
    given = with_assignment(inputs)

    def gradient(query):
        with tf.GradientTape() as tape:
            tape.watch(query)
            memory = new_memory(inputs, "oldest")
            output, _, _ = memory_chunk(
                **{**given, "query": query}, memory=memory, position=0, **OPTIONS
            )
            total = tf.reduce_sum(tf.sin(3 * output))
        return tape.gradient(total, query)

    compiled = tf.function(gradient, jit_compile=True)(given["query"])
    np.testing.assert_allclose(compiled, gradient(given["query"]), rtol=0, atol=1e-11)
