import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.losses.ctc import ctc_loss, naive_ctc_loss

# Repeated labels, one that occurs again later, a single label, and none.
LABELS = np.array([[1, 1, 2, 0, 0], [3, 2, 3, 3, 1], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
LOGITS = np.random.default_rng(0).normal(size=[4, 9, 4])


def naive_losses(labels, logits):
    return [naive_ctc_loss(*text) for text in zip(labels, logits)]


def losses_and_gradient(labels, logits, function=ctc_loss):
    logits = tf.cast(logits, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = function(labels, logits)
    return losses, tape.gradient(losses, logits)


def test_losses_are_those_of_the_recursion_and_gradients_those_of_small_differences():
    weights = np.array([1.0, 0.5, -2.0, 0.0])
    losses, found = losses_and_gradient(LABELS, LOGITS, lambda *x: weights * ctc_loss(*x))
    np.testing.assert_allclose(losses, weights * naive_losses(LABELS, LOGITS), rtol=1e-5)
    # The error of central differences in float64 is about the square of the step.
    step = 1e-4
    for place in np.ndindex(*LOGITS.shape[1:]):
        change = np.zeros(LOGITS.shape)
        change[:, *place] = step
        ahead, behind = (naive_losses(LABELS, LOGITS + x) for x in (change, -change))
        expected = weights * (np.array(ahead) - np.array(behind)) / (2 * step)
        np.testing.assert_allclose(found[:, *place], expected, rtol=0, atol=1e-4)


def test_labels_may_be_floats_and_have_more_padding():
    expected = ctc_loss(LABELS, LOGITS)
    np.testing.assert_array_equal(ctc_loss(LABELS.astype("float32"), LOGITS), expected)
    more = np.pad(LABELS, [[0, 0], [0, 3]])
    np.testing.assert_allclose(ctc_loss(more, LOGITS), expected, rtol=1e-6)


def test_the_blank_may_be_another_class():
    labels = np.where(LABELS == 0, 3, LABELS - 1)
    moved = np.concatenate([LOGITS[:, :, 1:], LOGITS[:, :, :1]], axis=2)
    np.testing.assert_allclose(ctc_loss(labels, moved, 3), ctc_loss(LABELS, LOGITS), rtol=1e-6)


@pytest.mark.parametrize("labels", [(1, 1, 0), (1, 2, 1)])
def test_too_few_positions_are_impossible_but_have_a_finite_gradient(labels):
    losses, gradient = losses_and_gradient([labels, (1, 2, 0)], LOGITS[:2, :2])
    assert 1e29 < losses[0] < 1e31
    assert np.all(np.isfinite(gradient))
    # Another row is not concerned.
    np.testing.assert_allclose(losses[1], naive_ctc_loss([1, 2], LOGITS[1, :2]), rtol=1e-5)
    _, alone = losses_and_gradient([(1, 2, 0)], LOGITS[1:2, :2])
    np.testing.assert_allclose(gradient[1], alone[0], rtol=0, atol=1e-6)


def test_logits_that_are_almost_certain():
    # As `PaddingToBlank` makes them.
    padding = np.broadcast_to([0.0, -1e9, -1e9, -1e9], [4, 3, 4])
    padded = np.concatenate([LOGITS, padding], axis=1)
    losses, gradient = losses_and_gradient(LABELS, padded)
    expected, of_real = losses_and_gradient(LABELS, LOGITS)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient[:, :9], of_real, rtol=0, atol=1e-5)
    np.testing.assert_allclose(gradient[:, 9:], 0.0, rtol=0, atol=1e-5)


def test_half_precision_is_summed_in_float32():
    losses = ctc_loss(LABELS, tf.cast(LOGITS, tf.bfloat16))
    assert losses.dtype == tf.float32
    rounded = tf.cast(tf.cast(LOGITS, tf.bfloat16), tf.float32)
    np.testing.assert_allclose(losses, ctc_loss(LABELS, rounded), rtol=1e-6)


def test_compiled_for_any_shape():
    spec = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, 4])]
    compiled = tf.function(
        lambda *x: losses_and_gradient(*x), input_signature=spec, jit_compile=True
    )
    given = tf.constant(LABELS, tf.int32), tf.constant(LOGITS, tf.float32)
    for found, expected in zip(compiled(*given), losses_and_gradient(*given)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
