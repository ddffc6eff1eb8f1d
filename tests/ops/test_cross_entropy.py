import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.losses.cross_entropy import chunked_cross_entropy, naive_cross_entropy
from tests.processes import temporaries

RNG = np.random.default_rng(0)
HIDDEN, TABLE, BIAS = (RNG.normal(size=shape) for shape in ((2, 5, 4), (7, 4), (7,)))
LABELS, WEIGHTS = RNG.integers(0, 7, [2, 5]), RNG.normal(size=(2, 5))


def computed(inputs, function=chunked_cross_entropy, **options):
    """Losses, likeliest labels, and the gradients of the losses' weighted sum."""
    hidden, table, *bias = inputs
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        losses, likeliest = function(hidden, table, tf.constant(LABELS), *bias, **options)
        loss = tf.reduce_sum(losses * tf.cast(WEIGHTS, losses.dtype))
    return losses, likeliest, *tape.gradient(loss, inputs)


def expected(inputs, **options):
    wide = [tf.cast(x, tf.float64) for x in inputs]
    return [tf.cast(x, tf.float64) for x in computed(wide, naive_cross_entropy, **options)]


def tensors(dtype="float32"):
    return [tf.cast(x, dtype) for x in (HIDDEN, TABLE, BIAS)]


@pytest.mark.parametrize("chunk_size", [1, 3, 10, 16])
@pytest.mark.parametrize("biased, soft_cap", [(True, None), (False, None), (True, 1.5)])
def test_losses_and_gradients_are_those_of_the_equation(chunk_size, biased, soft_cap):
    inputs = tensors()[: 2 + biased]
    found = computed(inputs, chunk_size=chunk_size, soft_cap=soft_cap)
    for x, y in zip(found, expected(inputs, soft_cap=soft_cap)):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_compiled_for_any_shape():
    spec = [tf.TensorSpec(shape) for shape in ([None, None, 4], [7, 4], [7])]
    function = tf.function(
        lambda *x: computed(x, chunk_size=3), input_signature=spec, jit_compile=True
    )
    for x, y in zip(function(*tensors()), expected(tensors())):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_summed_in_float32():
    found = computed(tensors("bfloat16"), chunk_size=3)
    assert found[0].dtype == tf.float32
    assert [x.dtype for x in found[2:]] == [tf.bfloat16] * 3
    for x, y in zip(found, expected(tensors())):
        np.testing.assert_allclose(tf.cast(x, tf.float64), y, rtol=0.05, atol=0.05)
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
