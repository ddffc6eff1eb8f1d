import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    RoutingHeads,
)
from rt_keras.layers.head_group import copy_groups
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def groups(dtype="float32", **options):
    """Returns heads of every kind, one with shared queries and keys."""
    return [
        LocalHeads(1, 3, dtype=dtype, **options),
        RoutingHeads(2, 3, 4, dtype=dtype, num_probes=2, **options),
        RoutingHeads(1, 2, 3, dtype=dtype, share_qk=True, **options),
        RoutingHeads(1, 2, 5, dtype=dtype, assignment="balanced", **options),
        FullHeads(1, dtype=dtype, **options),
    ]


def mixed(**options):
    dtype = options.get("dtype", "float32")
    return MultiHeadAttention(groups(dtype), **{"key_dim": 4, **options})


# Compatibility with Keras.


def twins(query, value, key=None, **options):
    """Returns Keras's multi-head attention, and ours with full heads and the same weights.

    Both store weights in the order query, key, value, output.
    """
    theirs = keras.layers.MultiHeadAttention(2, 4, **options)
    ours = MultiHeadAttention([FullHeads(2)], 4, **options)
    for layer in (theirs, ours):
        layer(query, value, key)
    rng = np.random.default_rng(7)
    values = [rng.normal(size=weight.shape) for weight in theirs.get_weights()]
    theirs.set_weights(values)
    ours.set_weights(
        [value.reshape(weight.shape) for value, weight in zip(values, ours.get_weights())]
    )
    return theirs, ours


CALLS = {
    "masks": {"query_mask": checks.padding(2, 7), "value_mask": checks.padding(2, 7, "left")},
    "key mask": {"key_mask": checks.padding(2, 7)},
    "attention mask": {"attention_mask": np.stack([np.tri(7, dtype=bool), np.ones((7, 7), bool)])},
    "all of them": {
        "value_mask": checks.padding(2, 7),
        "attention_mask": np.tri(7, k=2, dtype=bool)[None].repeat(2, axis=0),
        "use_causal_mask": True,
    },
}


@pytest.mark.parametrize("call", CALLS)
def test_call_of_keras(call):
    query, value, key = (checks.random(2, 7, 6, seed=seed) for seed in range(3))
    theirs, ours = twins(query, value, key)
    options = {**CALLS[call], "return_attention_scores": True}
    expected, expected_scores = theirs(query, value, key, **options)
    found, scores = ours(query, value, key, **options)
    # A padded query attends to no key here, and to all keys in Keras.
    real = options.get("query_mask", np.ones((2, 7), bool))
    checks.close(found[real], expected[real], 5e-6)
    of_real = np.broadcast_to(real[:, None, :, None], scores.shape)
    checks.close(scores, np.where(of_real, expected_scores, 0), 1e-5)
    np.testing.assert_array_equal(ours(query, value, key, **CALLS[call]), found)


@pytest.mark.parametrize(
    "options", [{}, {"use_bias": False}, {"value_dim": 3}, {"output_shape": 5}, {"dropout": 0.5}]
)
def test_options_of_keras(options):
    query, value = checks.random(2, 5, 6), checks.random(2, 8, 3, seed=1)
    theirs, ours = twins(query, value, **options)
    expected, expected_scores = theirs(query, value, return_attention_scores=True)
    found, scores = ours(query, value, return_attention_scores=True)
    checks.close(found, expected, 5e-6)
    checks.close(scores, expected_scores, 1e-5)
    assert found.shape == ours.compute_output_shape(query.shape, value.shape)


def test_masks_of_tensors():
    ids = np.array([[1, 2, 3, 4, 0, 0], [4, 3, 2, 1, 1, 0]])
    embedding = keras.layers.Embedding(5, 6, mask_zero=True)
    x = embedding(ids)
    layer = mixed()
    found = layer(x, x)
    assert checks.mask_of(found) == (ids != 0).tolist()
    x = tf.identity(x)
    for mask in (ids != 0, (ids != 0).astype("int32")):
        np.testing.assert_array_equal(layer(x, x, query_mask=mask, value_mask=mask), found)
    # The output of a query without keys is the bias.
    layer.output_dense.bias.assign(np.arange(6))
    found = layer(x, x, query_mask=ids != 0, value_mask=ids != 0)
    np.testing.assert_array_equal(found[ids == 0], [np.arange(6)] * 3)
    assert checks.largest_difference(found, layer(x, x)) > 1e-3


# Heads of several kinds.


def test_scores_in_training_count_the_batch_once():
    x = checks.random(2, 7, 6)
    layer = mixed()
    layer(x, x, training=True, return_attention_scores=True)
    routing = layer.head_groups[1]
    assert np.sum(routing.centroids.member_counts) == 2 * 2 * 2 * 7
    assert routing.centroids.member_batches.numpy() == 1
    assert len(layer.losses) == 3


def test_dropout_only_in_training_and_by_the_seed():
    x = checks.random(2, 9, 6)
    layers = [MultiHeadAttention([FullHeads(2)], dropout=0.5, seed=seed) for seed in (1, 1, 2)]
    for layer in layers:
        layer.build(x.shape, x.shape)
        for weight, source in zip(layer.trainable_variables, layers[0].trainable_variables):
            weight.assign(source)
    plain = layers[0](x, x)
    np.testing.assert_array_equal(plain, layers[0](x, x, training=False))
    first, same, other = (layer(x, x, training=True).numpy() for layer in layers)
    np.testing.assert_array_equal(first, same)
    for another in (plain, other, layers[0](x, x, training=True)):
        assert checks.largest_difference(first, another) > 1e-3


@pytest.mark.slow
def test_constraints_and_the_activity_regularizer_equal_those_of_keras():
    x = checks.random(2, 5, 6)
    constraints = {"kernel_constraint": "unit_norm", "bias_constraint": "unit_norm"}
    weights, losses = [], []
    for layer in twins(x, x, activity_regularizer="l2", **constraints):
        inputs = keras.Input([5, 6])
        model = keras.Model(inputs, layer(inputs, inputs))
        model.compile("sgd", "mse", jit_compile=False)
        losses.append(model.fit(x, x, verbose=0).history["loss"])
        weights.append(layer.get_weights())
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][0] > 10
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours.ravel(), theirs.ravel(), rtol=1e-4, atol=1e-5)


def test_config():
    x = checks.random(2, 5, 6)
    layer = MultiHeadAttention(
        groups(max_relative_distance=2),
        key_dim=4,
        value_dim=3,
        dropout=0.2,
        use_bias=False,
        output_shape=7,
        kernel_initializer="he_normal",
        kernel_regularizer="l2",
        activity_regularizer="l1",
        kernel_constraint="non_neg",
        bias_constraint=keras.constraints.MaxNorm(3, axis=-1),
        seed=3,
        conv_kernel_size=2,
    )
    checks.config_makes_an_equal_layer(layer, x, x, use_causal_mask=True)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head_groups": []}, r"head_groups must be a list of at least one .*Received: .*\[\]"),
        ({"head_groups": 4}, r"head_groups must be .*\[FullHeads\(num_heads\)\]. Received: .*=4"),
        ({"key_dim": 0}, "key_dim must be a positive integer. Received: key_dim=0"),
        ({"value_dim": 2.5}, "value_dim must be a positive integer. Received: value_dim=2.5"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\). Received: dropout=1.0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"head_groups": [LocalHeads(2, 4)], **options})


# Decoding with a cache.

KINDS = [
    LocalHeads(2, 3, max_relative_distance=2),
    RoutingHeads(2, 3, 4),
    LocalRoutingHeads(2, 3, 3, 4),
    FullHeads(2),
]
SHARED = LocalRoutingHeads(2, 3, 3, 4, share_qk=True)


@pytest.mark.parametrize("num_key_value_heads, heads", [(4, KINDS), (None, [SHARED])])
def test_chunks_of_rows_at_their_own_rotary_positions_are_one_pass(num_key_value_heads, heads):
    rotary = keras_hub.layers.RotaryEmbedding()
    options = {"num_key_value_heads": num_key_value_heads, "rotary_embedding": rotary}
    heads = copy_groups(heads, "float64")
    layer = MultiHeadAttention(heads, 4, dtype="float64", **options)
    x = checks.random(2, 15, 6, dtype="float64")
    layer.build(x.shape, x.shape)
    for weight in layer.weights:
        weight.assign_add(0.3 * checks.random(*weight.shape, seed=2, dtype="float64"))
    # Query heads that share keys share what a cache holds of them; if queries are keys, it has all.
    for of_group in layer.new_cache(2, 15):
        kept = {x.shape[1] for x in tf.nest.flatten(of_group.get("local", of_group))}
        assert kept == {1 if num_key_value_heads else 2}
    checks.chunks_are_one_pass(layer, x, 1e-6)


def test_training_drops_weights_and_collects_statistics():
    layer = MultiHeadAttention([RoutingHeads(2, 3, 4)], 4, dropout=0.5)
    x = checks.random(2, 6, 8)
    layer.build(x.shape, x.shape)
    states = [x for x in layer.weights if not x.trainable and "seed" not in x.path]
    before = [np.array(x) for x in states]
    first, same, other = (
        layer.call_with_cache(x, layer.new_cache(2, 6), 0, training=training)[0]
        for training in (False, False, True)
    )
    np.testing.assert_array_equal(first, same)
    assert checks.largest_difference(first, other) > 1e-3
    assert any(np.any(np.array(x) != old) for x, old in zip(states, before))


@pytest.mark.parametrize("beams, padded", [(1, False), (3, True)])
def test_recall_of_another_sequence(beams, padded):
    groups = [
        FullHeads(2, max_relative_distance=2),
        LocalHeads(2, 4, key_block_size=2, max_relative_distance=2),
    ]
    rotary = keras_hub.layers.RotaryEmbedding(dtype="float64") if padded else None
    options = {"num_key_value_heads": 2, "rotary_embedding": rotary, "dtype": "float64"}
    layer = MultiHeadAttention(copy_groups(groups, "float64"), 4, **options)
    x, encoded = checks.random(2, 12, 8), checks.random(2, 6, 8, seed=1)
    mask = checks.padding(2, 6) if padded else None
    expected = layer(x, encoded, value_mask=mask)
    assert layer.cached_cross_attention
    cross_cache = layer.make_cross_cache(encoded, mask)
    np.testing.assert_allclose(
        layer.call_with_cross_cache(x[:, :5], cross_cache), expected[:, :5], rtol=0, atol=1e-7
    )
    for position in range(12):
        queries = np.repeat(x[:, position, None], beams, axis=0)
        found = layer.call_with_cross_cache(queries, cross_cache, position)
        one = np.repeat(expected[:, position, None], beams, axis=0)
        np.testing.assert_allclose(found, one, rtol=0, atol=1e-7)
