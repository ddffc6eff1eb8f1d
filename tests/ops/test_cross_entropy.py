import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.losses.cross_entropy import chunked_cross_entropy
from tests.processes import temporaries

RNG = np.random.default_rng(0)
HIDDEN, TABLE, BIAS = (RNG.normal(size=shape) for shape in ((2, 5, 4), (7, 4), (7,)))
LABELS, WEIGHTS = RNG.integers(0, 7, [2, 5]), RNG.normal(size=(2, 5))


def one_after_another(bias=BIAS, cap=None):
    """Losses, likeliest labels, and the gradients of the losses' weighted sum."""
    losses, likeliest = np.zeros([2, 5]), np.zeros([2, 5], int)
    of_hidden, of_table, of_bias = (np.zeros_like(x) for x in (HIDDEN, TABLE, BIAS))
    for row, i in np.ndindex(2, 5):
        logits, slope = TABLE @ HIDDEN[row, i] + bias, 1.0
        if cap is not None:
            logits = cap * np.tanh(logits / cap)
            slope = 1 - (logits / cap) ** 2
        softmax = np.exp(logits) / np.exp(logits).sum()
        losses[row, i] = -np.log(softmax[LABELS[row, i]])
        likeliest[row, i] = np.argmax(logits)
        of_logits = WEIGHTS[row, i] * (softmax - np.eye(7)[LABELS[row, i]]) * slope
        of_hidden[row, i] = of_logits @ TABLE
        of_table += np.outer(of_logits, HIDDEN[row, i])
        of_bias += of_logits
    return losses, likeliest, of_hidden, of_table, of_bias


def computed(inputs, chunk_size=3, **options):
    hidden, table, bias = inputs if len(inputs) == 3 else (*inputs, None)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        losses, likeliest = chunked_cross_entropy(
            hidden, table, tf.constant(LABELS), bias, chunk_size, **options
        )
        loss = tf.reduce_sum(losses * tf.cast(WEIGHTS, tf.float32))
    return losses, likeliest, *tape.gradient(loss, inputs)


def tensors(dtype="float32"):
    return [tf.cast(x, dtype) for x in (HIDDEN, TABLE, BIAS)]


@pytest.mark.parametrize("chunk_size", [1, 3, 10, 16])
@pytest.mark.parametrize("biased, cap", [(True, None), (False, None), (True, 1.5)])
def test_losses_and_gradients_are_those_of_the_equation(chunk_size, biased, cap):
    found = computed(tensors()[: 2 + biased], chunk_size, soft_cap=cap)
    for x, expected in zip(found, one_after_another(BIAS * biased, cap)):
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)


def test_compiled_for_any_shape():
    spec = [tf.TensorSpec(shape) for shape in ([None, None, 4], [7, 4], [7])]
    function = tf.function(lambda *x: computed(x), input_signature=spec, jit_compile=True)
    for found, expected in zip(function(*tensors()), one_after_another()):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_summed_in_float32():
    found = computed(tensors("bfloat16"))
    assert found[0].dtype == tf.float32
    assert [x.dtype for x in found[2:]] == [tf.bfloat16] * 3
    for x, expected in zip(found, one_after_another()):
        np.testing.assert_allclose(tf.cast(x, tf.float64), expected, rtol=0.05, atol=0.05)
    hidden, table, bias = tensors()
    mixed = computed([tf.cast(hidden, tf.bfloat16), table, bias])
    assert mixed[3].dtype == tf.float32


@pytest.mark.parametrize("label", [-1, 7])
def test_labels_that_there_are_not_are_refused_as_in_keras(label):
    hidden, table, bias = tensors()
    wrong = LABELS.copy()
    wrong[1, 2] = label
    for function in (chunked_cross_entropy, tf.function(chunked_cross_entropy)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"label value of {label}"):
            function(hidden, table, tf.constant(wrong), bias, 3)


SCRIPT = """
import tensorflow as tf
from rt_keras.ops.losses.cross_entropy import chunked_cross_entropy

def whole(hidden, table, labels):
    logits = tf.einsum("bnd,vd->bnv", hidden, table)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

def compiled(name, function):
    def step(hidden, table, labels):
        with tf.GradientTape() as tape:
            tape.watch([hidden, table])
            loss = tf.reduce_sum(function(hidden, table, labels))
        return tape.gradient(loss, [hidden, table])
    step.__name__ = name
    inputs = tf.random.normal([2, 256, 8]), tf.random.normal([30_000, 8])
    tf.function(step, jit_compile=True)(*inputs, tf.zeros([2, 256], tf.int32))

compiled("whole", whole)
compiled("chunked", lambda *inputs: chunked_cross_entropy(*inputs, chunk_size=32)[0])
"""


@pytest.mark.slow
def test_memory_holds_the_logits_of_one_chunk():
    found = temporaries(SCRIPT)
    logits = 512 * 30_000 * 4
    assert found["whole"] > logits
    # Two chunks' logits or their gradients, and two tables' gradients.
    assert found["chunked"] < 2 * logits * 32 / 512 + 2 * 30_000 * 8 * 4 + 10**6
