"""Checks that apply to every layer."""

import math

import keras
import numpy as np
import tensorflow as tf

from rt_keras import keras_internals
from rt_keras.layers import (
    CausalClusteredHeads,
    ClusterStridedHeads,
    FullHeads,
    HashedHeads,
    LocalHeads,
    LocalRoutingHeads,
    LSHHeads,
    MultiHeadAttention,
    RandomHeads,
    RoutingHeads,
    StridedHeads,
)

EVERY_KIND = {
    "local": lambda: LocalHeads(2, 3, max_relative_distance=2),
    "nearest": lambda: RoutingHeads(2, 3, 4),
    "shared": lambda: RoutingHeads(2, 3, 4, share_qk=True, max_relative_distance=2),
    "probes": lambda: RoutingHeads(2, 3, 4, num_probes=2),
    "balanced": lambda: RoutingHeads(2, 3, 4, assignment="balanced"),
    "full": lambda: FullHeads(2, max_relative_distance=2),
    "hashed": lambda: HashedHeads(2, 3, 4),
    "strided": lambda: StridedHeads(2, 3),
    "random": lambda: RandomHeads(2, 3, 4),
    "cluster-strided": lambda: ClusterStridedHeads(2, 3, 4),
    "local-routing": lambda: LocalRoutingHeads(2, 3, 3, 4, kernel_size=2),
    "sliding": lambda: LocalHeads(2, 3, sliding_window=2),
    "causal-clustered": lambda: CausalClusteredHeads(2, 3, 4),
    "lsh": lambda: LSHHeads(2, 4, 3, num_rounds=2),
}


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
    """Asserts that `from_config` creates a layer with the same weight shapes and outputs."""
    config = keras.saving.serialize_keras_object(layer)
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(layer)
    assert keras.saving.serialize_keras_object(copy)["config"] == config["config"]
    expected = layer(*inputs, **options)
    copy(*inputs, **options)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(copy(*inputs, **options), expected)


def saves_and_loads(model, inputs, folder):
    """Asserts equal outputs after loading a `.keras` file, weights and a SavedModel."""
    expected = model(inputs)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    assert largest_difference(loaded(inputs), expected) <= 1e-6

    model.save_weights(folder / "model.weights.h5")
    fresh = type(model).from_config(model.get_config())
    assert largest_difference(fresh(inputs), expected) > 1e-3
    fresh.load_weights(folder / "model.weights.h5")
    assert largest_difference(fresh(inputs), expected) <= 1e-6

    model.export(folder / "saved_model", verbose=False)
    exported = tf.saved_model.load(folder / "saved_model")
    assert largest_difference(exported.serve(tf.constant(inputs)), expected) <= 1e-5


def gradients(layer, *inputs, **options):
    """Returns gradients of a function of the output, by path of the trainable weight."""
    with tf.GradientTape() as tape:
        output = layer(*inputs, **options)
        loss = tf.reduce_sum(tf.sin(3 * tf.cast(output, "float32")))
        loss += tf.add_n(layer.losses) if layer.losses else 0.0
    variables = layer.trainable_variables
    found = tape.gradient(loss, [variable.value for variable in variables])
    return {variable.path: gradient for variable, gradient in zip(variables, found)}


def trains_every_weight(layer, *inputs, **options):
    for path, gradient in gradients(layer, *inputs, **options).items():
        assert gradient is not None, path
        assert np.all(np.isfinite(gradient)), path
        # The bias of keys adds the same to all logits of a query, which softmax ignores.
        if not path.endswith("key/bias"):
            assert np.any(np.abs(gradient) > 1e-7), path


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


def decodes_to(expected, group, query, value, key, count):
    """Asserts the outputs of a head group from position `count` on, one at a time.

    Args:
        expected: `[batch, heads, length, value_depth]`.
        group: a head group of float64.
        query, value, key: `[batch, heads, length, ...]`; key may be None.
        count: int, number of positions in the initial cache.
    """
    batch, _, length, depth = query.shape

    def part(at):
        return [None if x is None else x[:, :, at] for x in (query, value, key)]

    cache = group.new_cache(batch, length, depth, value.shape[3])
    if count:
        first = slice(0, count + 2)
        cache = group.make_cache(*part(first), count, length)
    for position in range(count, length):
        at = slice(position, position + 1)
        output, cache = group.call_with_cache(*part(at), cache, position)
        np.testing.assert_allclose(output, expected[:, :, at], rtol=0, atol=1e-12)


def takes_empty_batches_and_sequences(group, static, use_causal_mask=True):
    """Asserts that a head group supports empty batches and sequences in training."""
    layer = MultiHeadAttention([group], 4)
    layer.build((None, None, 6), (None, None, 6))

    def train(x, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            masks = {"query_mask": mask, "value_mask": mask}
            y = layer(x, x, **masks, use_causal_mask=use_causal_mask, training=True)
            loss = tf.reduce_sum(y) + sum(layer.losses)
        return y, loss, tape.gradient(loss, x)

    if not static:
        specs = tf.TensorSpec([None, None, 6]), tf.TensorSpec([None, None], tf.bool)
        train = tf.function(train, input_signature=specs)
    for shape in ((0, 9), (2, 0), (0, 0)):
        output, loss, gradient = train(tf.ones([*shape, 6]), tf.ones(shape, tf.bool))
        assert output.shape == gradient.shape == (*shape, 6) and loss == 0
    assert not hasattr(group, "member_counts") or not np.any(group.member_counts)


def divergence_in_a_loop(p, q):
    """Computes the Jensen-Shannon divergence of two distributions over the same keys."""
    total = 0.0
    for a, b in zip(p, q):
        middle = (a + b) / 2
        total += a * math.log(a / middle) / 2 if a else 0.0
        total += b * math.log(b / middle) / 2 if b else 0.0
    return total
