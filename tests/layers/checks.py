"""Checks that apply to every layer."""

import inspect
import math

import keras
import numpy as np
import tensorflow as tf

from rt_keras import keras_internals
from tests.contract.ways import read_in_chunks


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def padding(batch, length, kind="right"):
    """Returns a mask with different padding in every row."""
    count = 1 + np.arange(batch)[:, None] * length // (2 * batch)
    positions = np.arange(length)
    return positions < length - count if kind == "right" else positions >= count


def largest_difference(a, b):
    return float(np.max(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64"))))


def close(found, expected, tolerance):
    """Asserts that two float32 results are equal up to rounding, which is relative.

    The tolerance is for values up to 1. It is scaled by the largest expected value.
    """
    largest = max(1, np.max(np.abs(expected)))
    assert largest_difference(found, expected) <= tolerance * largest


def mask_of(x):
    """Returns the Keras mask of a tensor."""
    return keras_internals.mask_of(x).numpy().tolist()


def config_makes_an_equal_layer(layer, *inputs, **options):
    """Asserts that `from_config` creates a layer with the same arguments and outputs."""
    config = keras.saving.serialize_keras_object(layer)
    arguments = inspect.signature(type(layer).__init__).parameters.values()
    named = {x.name for x in arguments if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)}
    assert named - {"self"} <= {*config["config"]}
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(layer)
    assert keras.saving.serialize_keras_object(copy)["config"] == config["config"]
    expected = layer(*inputs, **options)
    copy(*inputs, **options)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(copy(*inputs, **options), expected)
    np.testing.assert_allclose(copy.losses, layer.losses, rtol=1e-6)


def trains_every_weight(layer, *inputs, **options):
    with tf.GradientTape() as tape:
        output = layer(*inputs, **options)
        loss = tf.reduce_sum(tf.sin(3 * tf.cast(output, "float32")))
        loss += tf.add_n(layer.losses) if layer.losses else 0.0
    weights = layer.trainable_variables
    gradients = tape.gradient(loss, [weight.value for weight in weights])
    for weight, gradient in zip(weights, gradients, strict=True):
        assert gradient is not None, weight.path
        # Those of rows that are gathered become tensors.
        gradient = tf.convert_to_tensor(gradient)
        assert np.all(np.isfinite(gradient)), weight.path
        # The bias of keys adds the same to all logits of a query, which softmax ignores.
        if not weight.path.endswith("key/bias"):
            assert np.any(np.abs(gradient) > 1e-7), weight.path


def decode(layer, x, count, max_length=None):
    """Returns the outputs of `prefill` of `count` positions and of single later positions."""
    max_length = max_length or x.shape[1]
    if count:
        # The additional position must not change the cache.
        stretch = slice(0, count + 1)
        output, cache = layer.prefill(x[:, stretch], count, max_length)
        outputs = [output[:, :count]]
    else:
        cache, outputs = layer.new_cache(len(x), max_length), []
    for position in range(count, x.shape[1]):
        at = slice(position, position + 1)
        output, cache = layer.call_with_cache(x[:, at], cache, position)
        outputs.append(output)
    return tf.concat(outputs, axis=1)


def chunks_are_one_pass(layer, x, tolerance):
    """Asserts that two rows that read chunks at positions of their own get the output at once."""

    def read(chunk, cache, position, count):
        return layer.call_with_cache(chunk["x"], cache, position, count=count)

    expected = np.asarray(layer(x, x, use_causal_mask=True))
    read_in_chunks(read, layer.new_cache(2, x.shape[1]), {"x": x}, expected, 5, tolerance)


def divergence_in_a_loop(p, q):
    """Computes the Jensen-Shannon divergence of two distributions over the same keys."""
    total = 0.0
    for a, b in zip(p, q):
        middle = (a + b) / 2
        total += a * math.log(a / middle) / 2 if a else 0.0
        total += b * math.log(b / middle) / 2 if b else 0.0
    return total
