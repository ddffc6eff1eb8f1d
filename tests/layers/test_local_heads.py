import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LocalHeads, MultiHeadAttention
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("look_back", [0, 1, 2])
def test_equation(causal, look_back):
    query, key, value = (
        checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    mask = checks.padding(2, 11)
    group = LocalHeads(2, 4, look_back, max_relative_distance=3, dtype="float64")
    found = group(query, value, key, query_mask=mask, key_mask=mask, use_causal_mask=causal)
    expected = reference.local(
        query,
        key,
        value,
        block_size=4,
        look_back=look_back,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
        relative_embeddings=group.relative_embeddings.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_grid(causal):
    query, key, value = (
        checks.random(2, 2, 12, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = LocalHeads(
        2,
        2,
        (1, 0),
        max_relative_distance=3,
        grid=[3, 2],
        dtype="float64",
    )
    found = group(query, value, key, use_causal_mask=causal)
    expected = reference.local(
        query,
        key,
        value,
        block_size=2,
        look_back=(1, 0),
        grid=(3, 2),
        causal=causal,
        relative_embeddings=group.relative_embeddings.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key)


def test_key_block_size():
    query = checks.random(2, 2, 9, 6, dtype="float64")
    key, value = (checks.random(2, 2, 6, 6, seed=seed, dtype="float64") for seed in (1, 2))
    group = LocalHeads(2, 3, key_block_size=2, dtype="float64")
    mask = checks.padding(2, 6)
    found = group(query, value, key, key_mask=mask)
    expected = reference.local(query, key, value, block_size=3, key_block_size=2, key_mask=mask)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key)


@pytest.mark.parametrize("causal", [False, True])
def test_sliding_window(causal):
    query, key, value = (
        checks.random(1, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = LocalHeads(2, 4, sliding_window=3, dtype="float64")
    found = group(query, value, key, use_causal_mask=causal)
    options = {"block_size": 4, "sliding_window": 3, "causal": causal}
    expected = reference.local(query, key, value, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key, use_causal_mask=causal)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sliding_window": 0}, "sliding_window must be an integer of at least 1"),
        ({"sliding_window": 6}, "from 1 to look_back · block_size . 1, 5. Received: 6"),
        ({"sliding_window": 3, "grid": (2, 2)}, "with grid or key_block_size"),
        ({"grid": (2, 0)}, r"grid must be positive integers. Received: grid=\(2, 0\)"),
        ({"key_block_size": 0}, "key_block_size must be an integer of at least 1"),
        ({"look_back": (1, 1)}, r"one for each dimension of grid. Received: look_back=\(1, 1\)"),
        (
            {"look_back": (1,), "grid": (2, 2)},
            r"one for each dimension of grid. .* look_back=\(1,\), grid=\(2, 2\)",
        ),
        ({"block_size": 0}, "block_size must be an integer of at least 1. Received: block_size=0"),
        (
            {"block_size": 2.5},
            "block_size must be an integer of at least 1. Received: block_size=2.5",
        ),
        (
            {"look_back": -1},
            "look_back must be an integer of at least 0. Received: look_back=-1",
        ),
        (
            {"look_back": 0.5},
            "look_back must be an integer of at least 0. Received: look_back=0.5",
        ),
    ],
)
def test_bad_numbers(options, message):
    with pytest.raises(ValueError, match=message):
        LocalHeads(2, **{"block_size": 4, **options})


def test_different_lengths():
    query, value = checks.random(1, 2, 5, 6), checks.random(1, 2, 7, 6)
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        LocalHeads(2, 4)(query, value, value)


@pytest.mark.parametrize("activation", ["sparsemax", "entmax15"])
def test_attention_activation(activation):
    query, key, value = (
        checks.random(1, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = LocalHeads(2, 4, attention_activation=activation, dtype="float64")
    found = group(query, value, key, use_causal_mask=True)
    options = {"block_size": 4, "causal": True, "attention_activation": activation}
    np.testing.assert_allclose(
        found, reference.local(query, key, value, **options), rtol=0, atol=1e-12
    )
    checks.config_makes_an_equal_layer(group, query, value, key)


def spanned(**options):
    group = LocalHeads(2, 4, adaptive_span=True, span_ramp=3, span_loss_weight=0.1, **options)
    group.build((None, 2, None, 6), (None, 2, None, 6))
    group.span_share.assign([0.25, 0.5])
    return group


def test_other_activations_do_not_run_in_litert():
    assert LocalHeads(2, 4, adaptive_span=True).runs_in_litert
    assert not LocalHeads(2, 4, attention_activation="entmax15").runs_in_litert


@pytest.mark.parametrize("window", [None, 5])
def test_adaptive_span(window):
    query, key, value = (
        checks.random(1, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = spanned(sliding_window=window, dtype="float64")
    furthest = 7 if window is None else 4
    spans = np.array([0.25, 0.5]) * furthest
    np.testing.assert_allclose(group.spans, spans)
    options = {"block_size": 4, "sliding_window": window, "span": spans, "span_ramp": 3}
    expected = reference.local(query, key, value, causal=True, **options)
    found = group(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(group.losses, [0.1 * spans.mean()])
    checks.config_makes_an_equal_layer(group, query, value, key)


def test_spans_learn_the_required_distance():
    group = LocalHeads(1, 8, adaptive_span=True, span_ramp=2, span_loss_weight=1e-3)
    value = checks.random(4, 1, 32, 6)
    zeros = np.zeros_like(value)
    wanted = LocalHeads(1, 8, sliding_window=6)(zeros, value, zeros, use_causal_mask=True)
    optimizer = keras.optimizers.Adam(0.04)
    for _ in range(30):
        with tf.GradientTape() as tape:
            found = group(zeros, value, zeros, use_causal_mask=True)
            loss = tf.reduce_mean((found - wanted) ** 2) + group.losses[0]
        gradients = tape.gradient(loss, group.trainable_variables)
        optimizer.apply(gradients, group.trainable_variables)
    # With these spans, the last of six keys or the next one is on the ramp.
    assert 3 < float(group.spans[0]) < 5.5


def test_shares_stay_between_0_and_1():
    group = spanned()
    keras.optimizers.SGD(1.0).apply([tf.constant([9.0, -9.0])], [group.span_share])
    np.testing.assert_array_equal(group.span_share, [0.0, 1.0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_bfloat16"])
def test_spans_train_in_every_precision(dtype):
    keras.utils.set_random_seed(0)
    inputs = keras.Input([12, 8], dtype=dtype if dtype == "float64" else "float32")
    heads = LocalHeads(2, 4, adaptive_span=True, span_ramp=3, span_loss_weight=0.0, dtype=dtype)
    attention = MultiHeadAttention([heads], 4, dtype=dtype)
    model = keras.Model(inputs, attention(inputs, inputs, use_causal_mask=True))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    x = checks.random(4, 12, 8)
    model.fit(x, np.roll(x, 1, axis=1), epochs=3, verbose=0)
    assert heads.spans.dtype == ("float64" if dtype == "float64" else "float32")
    assert np.any(heads.spans.numpy() > 0)


def test_spans_are_float32_in_mixed_precision():
    group = spanned(dtype="mixed_bfloat16")
    x = checks.random(1, 2, 11, 6)
    assert group(x, x, x).dtype == "bfloat16"
    assert group.span_share.dtype == group.spans.dtype == "float32"


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"attention_activation": "max"},
            "attention_activation must be one of .* attention_activation='max'",
        ),
        ({"adaptive_span": True, "attention_activation": "entmax15"}, "with adaptive_span"),
        ({"adaptive_span": True, "grid": (2, 2)}, "span cannot be combined with grid or key_block"),
        ({"span_ramp": 0}, "span_ramp must be an integer of at least 1"),
        (
            {"span_loss_weight": -1.0},
            "span_loss_weight must be a number of at least 0. Received: .*=-1.0",
        ),
    ],
)
def test_bad_activations_and_spans(options, message):
    with pytest.raises(ValueError, match=message):
        LocalHeads(2, 4, **options)


OPTIONS = [
    {},
    {"look_back": 0},
    {"max_relative_distance": 3},
    {"max_relative_distance": 3, "relative_positions": "sinusoidal"},
    {"max_relative_distance": 3, "relative_positions": "bucketed"},
    {"sliding_window": 4},
    {"attention_activation": "sparsemax"},
    {"attention_activation": "entmax15", "max_relative_distance": 3},
    {"adaptive_span": True, "span_ramp": 3},
    {"adaptive_span": True, "sliding_window": 4, "max_relative_distance": 3},
    {"num_persistent_keys": 2},
    {"num_persistent_keys": 2, "adaptive_span": True, "max_relative_distance": 3},
    {"grid": (2, 2), "look_back": (0, 1), "max_relative_distance": 3},
]


def grouped(options):
    """Returns a group with four query heads and two key/value heads, and its inputs."""
    group = LocalHeads(4, 3, dtype="float64", **options)
    query = checks.random(2, 4, 12, 6, dtype="float64")
    key, value = (checks.random(2, 2, 12, 6, seed=seed, dtype="float64") for seed in (1, 2))
    group.build(query.shape, value.shape)
    if group.adaptive_span:
        group.span_share.assign([0.0, 0.2, 0.5, 0.9])
    return group, *(tf.constant(x) for x in (query, key, value))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_grouped_queries_share_keys_in_steps_and_chunks_too(options):
    group, query, key, value = grouped(options)
    expected = group(query, value, key, use_causal_mask=True)
    repeated = [np.repeat(x, 2, axis=1) for x in (value, key)]
    own_keys = LocalHeads(4, 3, dtype="float64", **options)
    own_keys.build(query.shape, query.shape)
    own_keys.set_weights(group.get_weights())
    found = own_keys(query, *repeated, use_causal_mask=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)

    checks.decodes_to(expected, group, query, value, key, 0)
    checks.decodes_to(expected, group, query, value, key, 5)
    cache = group.new_cache(2, 12, 6, 6)
    for at in (slice(0, 5), slice(5, 6), slice(6, 12)):
        parts = [x[:, :, at] for x in (query, value, key)]
        output, cache = group.call_with_cache(*parts, cache, at.start)
        np.testing.assert_allclose(output, expected[:, :, at], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS[:-3] + OPTIONS[-1:], ids=str)
def test_grouped_queries_share_the_keys_of_another_sequence(options):
    group, query, key, value = grouped(options)
    mask = checks.padding(2, 12)
    expected = group(query, value, key, key_mask=mask)
    for position in range(12):
        one = query[:, :, position : position + 1]
        found = group.cross_attention_step(one, value, key, position, key_mask=mask)
        np.testing.assert_allclose(found[:, :, 0], expected[:, :, position], rtol=0, atol=1e-12)
