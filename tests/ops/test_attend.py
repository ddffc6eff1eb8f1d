import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.attend import MASKED, attend
from rt_keras.ops.naive import naive_softmax

QUERIES, KEYS = 4, 6


def blocks(seed=0):
    rng = np.random.default_rng(seed)
    query, key = rng.normal(size=(2, 3, QUERIES, 5)), rng.normal(size=(2, 3, KEYS, 5))
    return query, key, rng.normal(size=(2, 3, KEYS, 7))


def equation(query, key, value, allowed, bias):
    """Allowed and bias are broadcastable to `[..., queries, keys]`."""
    logits = query @ key.swapaxes(-1, -2) + bias
    weights = np.where(allowed, np.exp(logits), 0)
    total = weights.sum(-1)
    logsumexp = np.where(total > 0, np.log(np.where(total > 0, total, 1)), MASKED)
    return naive_softmax(logits, allowed) @ value, logsumexp


def some_allowed():
    allowed = np.random.default_rng(5).random((2, 3, QUERIES, KEYS)) < 0.5
    allowed[0, 1, 2] = False
    return allowed


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32])
@pytest.mark.parametrize("bound", [19.5, 1e3])
def test_a_bound_in_place_of_the_maximum(bound, dtype):
    query, key, value = blocks()
    # Logits as far apart as the bound allows: the smallest weight is exp(-2 bound).
    query *= bound / np.max(np.abs(query @ key.swapaxes(-1, -2)))
    given = [tf.constant(x, dtype) for x in (query, key, value)]
    allowed = some_allowed()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(given)
        output, logsumexp = attend(*given, allowed, bound=bound)
        expected, expected_log = attend(*given, allowed)
    # A rounding of the type, at values of about 1 and gradients of the bound's size.
    epsilon = {tf.float16: 1e-3, tf.bfloat16: 8e-3, tf.float32: 1e-6}[dtype]
    tolerance = {"rtol": 20 * epsilon, "atol": 20 * epsilon}
    np.testing.assert_allclose(output, expected, **tolerance)
    np.testing.assert_allclose(logsumexp, expected_log, **tolerance)
    assert np.all(np.asarray(output)[0, 1, 2] == 0)
    for found, wanted in zip(tape.gradient(output, given), tape.gradient(expected, given)):
        np.testing.assert_allclose(found, wanted, **tolerance)


@pytest.mark.parametrize("long_block", [1, QUERIES + 1])
def test_gradients_of_the_output_and_of_the_logarithm(long_block, monkeypatch):
    monkeypatch.setattr(f"{attend.__module__}.LONG_BLOCK", long_block)
    given = [*blocks(), np.random.default_rng(6).normal(size=(3, QUERIES, KEYS))]
    allowed = some_allowed()
    weights = np.random.default_rng(7).normal(size=(2, 3, QUERIES))

    def loss_of_equation(given):
        output, logsumexp = equation(*given[:3], allowed, given[3])
        return np.sum(np.sin(output)) + np.sum(weights * logsumexp, where=logsumexp > MASKED)

    with tf.GradientTape() as tape:
        variables = [tf.Variable(x) for x in given]
        output, logsumexp = attend(*variables[:3], allowed, bias=variables[3])
        logsumexp = tf.where(logsumexp > MASKED, logsumexp, 0)
        loss = tf.reduce_sum(tf.sin(output)) + tf.reduce_sum(weights * logsumexp)
    gradients = tape.gradient(loss, variables)
    assert not np.any(gradients[0][0, 1, 2])

    for index, gradient in enumerate(gradients):
        direction = np.random.default_rng(index).normal(size=gradient.shape)
        moved = [
            [*given[:index], given[index] + s * direction, *given[index + 1 :]]
            for s in (1e-5, -1e-5)
        ]
        slope = (loss_of_equation(moved[0]) - loss_of_equation(moved[1])) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e3, 1e6])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_large_logits_of_six_axes(scale, dtype):
    query, key, value = (tf.constant(x[None, None], dtype) for x in blocks())
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output, logsumexp = attend(query * tf.cast(scale, dtype), key, value, some_allowed())
    assert np.all(np.isfinite(logsumexp))
    for x in (output, *tape.gradient(output, [query, key, value])):
        assert np.all(np.isfinite(tf.cast(x, tf.float32)))


def test_gradients_of_many_queries_that_blocks_share():
    """The gradient of a query is the sum of those in all blocks."""
    query, key, value = (
        tf.random.stateless_normal(shape, [0, seed])
        for seed, shape in enumerate([(1, 200, 4), (3, 5, 4), (3, 5, 4)])
    )
    repeated = tf.repeat(query, 3, axis=0)
    allowed = tf.constant(True)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([query, repeated, key])
        shared, _ = attend(query, key, value, allowed)
        separate, _ = attend(repeated, key, value, allowed)
    found = tape.gradient(shared, [query, key], separate)
    expected = tape.gradient(separate, [repeated, key], separate)
    np.testing.assert_allclose(shared, separate, rtol=1e-5, atol=1e-6)
    total = tf.reduce_sum(expected[0], axis=0, keepdims=True)
    np.testing.assert_allclose(found[0], total, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


def test_softmax_of_bfloat16_is_float32():
    # 2,000 equal weights: a sum in bfloat16 would stop at 256.
    output, logsumexp = attend(
        tf.zeros([1, 2], tf.bfloat16),
        tf.zeros([2000, 2], tf.bfloat16),
        tf.ones([2000, 1], tf.bfloat16),
        [[True]],
    )
    assert output.dtype == tf.bfloat16 and logsumexp.dtype == tf.float32
    np.testing.assert_allclose(logsumexp, np.log(2000), rtol=1e-6)
    np.testing.assert_allclose(tf.cast(output, tf.float32), 1, rtol=0.01)


def test_dropout_leaves_the_total():
    given = [tf.constant(x) for x in blocks()]
    kept = attend(*given, some_allowed())
    dropped = attend(*given, some_allowed(), dropout=0.5, seed=[1, 2])
    assert np.max(np.abs(kept[0] - dropped[0])) > 0.1
    np.testing.assert_array_equal(kept[1], dropped[1])


def test_dropout_is_the_same_in_output_and_gradient():
    query, key, value = (tf.constant(x) for x in blocks())
    with tf.GradientTape() as tape:
        tape.watch(value)
        output, _ = attend(query, key, value, some_allowed(), dropout=0.5, seed=[1, 2])
    # The output is linear in the values, also with dropout.
    gradient = tape.gradient(output, value)
    np.testing.assert_allclose(tf.reduce_sum(gradient * value), tf.reduce_sum(output), rtol=1e-12)
