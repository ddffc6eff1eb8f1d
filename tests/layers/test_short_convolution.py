"""The layer of short convolutions, and `conv_kernel_size` of attention and blocks."""

import re

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
    TransformerBlock,
)
from rt_keras.layers.head_group import copy_groups
from rt_keras.layers.short_convolution import ShortConvolution
from tests.layers import checks
from tests.layers.test_projections import rotated
from tests.ops import reference

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

KERNEL_SIZE, LENGTH, WIDTH, DEPTH = 3, 8, 6, 4
X = checks.random(2, LENGTH, WIDTH, dtype="float64")
SEES_ALL = [FullHeads(2), LocalHeads(2, 3)]
SHARED = [LocalHeads(1, 3), RoutingHeads(1, 2, 3, share_qk=True), FullHeads(1)]
ROUTED = [*SHARED, LocalRoutingHeads(1, 2, 3, 4), RoutingHeads(1, 3, 4, num_probes=2)]
READS_ON = [LocalHeads(1, 3), LocalRoutingHeads(2, 2, 3, 4), FullHeads(1)]
GROUPED = {"num_key_value_heads": 2}


def randomize(layer):
    """Gives all weights random values, since kernels start at 0."""
    for number, weight in enumerate(layer.trainable_variables):
        weight.assign(weight + 0.5 * checks.random(*weight.shape, seed=number))
    return layer


def attention(groups=SEES_ALL, dtype="float64", width=WIDTH, **options):
    keras.utils.set_random_seed(0)
    options = {"conv_kernel_size": KERNEL_SIZE, **options}
    if options.pop("rotary", False):
        options["rotary_embedding"] = keras_hub.layers.RotaryEmbedding(dtype=dtype)
    layer = MultiHeadAttention(copy_groups(groups, dtype), DEPTH, dtype=dtype, **options)
    layer.build((2, None, width), (2, None, width))
    return randomize(layer)


def convolved(x, kernel, mask=None):
    """The equation for `[batch, length, features]` and `[kernel_size, features]`."""
    one_head = reference.convolved(x[:, None], kernel[None], mask)
    return x + one_head[:, 0]


# The layer.


@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("kind", ["left", "right"])
def test_equation(kernel_size, kind):
    layer, mask = ShortConvolution(kernel_size, dtype="float64"), checks.padding(2, LENGTH, kind)
    np.testing.assert_array_equal(layer(X), X)
    kernel = randomize(layer).kernel.numpy()
    assert kernel.shape == (kernel_size, WIDTH)
    found = layer(X, mask=mask)
    assert found.shape == layer.compute_output_shape(X.shape)
    np.testing.assert_allclose(found, convolved(X, kernel, mask), rtol=0, atol=1e-12)
    assert ShortConvolution.from_config(layer.get_config()).kernel_size == kernel_size


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_chunks_of_rows_at_different_positions(kernel_size):
    layer = ShortConvolution(kernel_size, dtype="float64")
    layer.build(X.shape)
    expected = randomize(layer)(X).numpy()
    cache, starts = layer.new_cache(2), np.zeros(2, "int32")
    padded = np.concatenate([X, np.full_like(X, 7)], axis=1)
    for counts in ([2, 4], [0, 1], [5, 0], [1, 3]):
        chunk = np.stack([padded[row, start : start + 5] for row, start in enumerate(starts)])
        output, cache = layer.call_with_cache(chunk, cache, tf.constant(counts))
        for row, (start, count) in enumerate(zip(starts, counts)):
            at = slice(start, start + count)
            np.testing.assert_allclose(output[row, :count], expected[row, at], rtol=0, atol=1e-12)
        starts += counts
    assert starts.tolist() == [LENGTH, LENGTH]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_positions_after_the_first_ones(count):
    layer = ShortConvolution(KERNEL_SIZE, dtype="float64")
    layer.build(X.shape)
    expected = randomize(layer)(X)
    cache = layer.make_cache(X, count)
    np.testing.assert_array_equal(cache.shape, layer.new_cache(2).shape)
    output, _ = layer.call_with_cache(X[:, count:], cache)
    np.testing.assert_allclose(output, expected[:, count:], rtol=0, atol=1e-12)


# Attention.


def in_a_loop(layer, x, y, kernels, query_mask=None, key_mask=None, causal=False, rotary=False):
    """The output of attention with groups of `SEES_ALL` or `SHARED`, given kernels by role."""
    key_heads = 0 if layer.key_dense is None else layer.key_dense.units // DEPTH

    def vectors(role, inputs, heads, mask):
        dense = getattr(layer, f"{role}_dense")
        flat = inputs @ dense.kernel.numpy() + dense.bias.numpy()
        flat = convolved(flat, kernels[role], mask)
        found = np.moveaxis(flat.reshape(*inputs.shape[:2], heads, -1), 2, 1)
        return rotated(found) if rotary and role != "value" else found

    query = vectors("query", x, layer.num_heads, query_mask)
    key = vectors("key", y, key_heads, key_mask)
    value = vectors("value", y, layer.value_dense.units // DEPTH, key_mask)
    masks = {"query_mask": query_mask, "key_mask": key_mask, "causal": causal}
    outputs = []
    for group, (of_group, of_values, of_keys) in layer._hand_out(query, key, value):
        repeats = group.num_heads // of_values.shape[1]
        of_keys, of_values = (
            None if z is None else np.repeat(z, repeats, axis=1) for z in (of_keys, of_values)
        )
        inputs = of_group, of_keys, of_values
        if isinstance(group, FullHeads):
            outputs.append(reference.full(*inputs, **masks))
        elif isinstance(group, LocalHeads):
            outputs.append(reference.local(*inputs, block_size=3, **masks))
        else:
            centroids = group.centroids.numpy()
            outputs.append(reference.nearest(*inputs, centroids, window_size=3, **masks))
    joined = np.moveaxis(np.concatenate(outputs, axis=1), 1, 2).reshape(*x.shape[:2], -1)
    return joined @ layer.output_dense.kernel.numpy() + layer.output_dense.bias.numpy()


def kernels_of(layer):
    """The kernels of a layer by role, without keys if no group has them."""
    roles = [role for role in ("query", "key", "value") if layer._convolution_of(role) is not None]
    return {role: layer._convolution_of(role).kernel for role in roles}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["left", "right"])
@pytest.mark.parametrize(
    "groups, options",
    [(SHARED, {}), (SEES_ALL, {**GROUPED, "rotary": True})],
    ids=["shared", "grouped and rotary"],
)
def test_equation_of_attention(groups, options, kind, causal):
    layer, mask = attention(groups, **options), checks.padding(2, LENGTH, kind)
    found = layer(X, X, query_mask=mask, value_mask=mask, use_causal_mask=causal)
    kernels = {role: kernel.numpy() for role, kernel in kernels_of(layer).items()}
    expected = in_a_loop(layer, X, X, kernels, mask, mask, causal, "rotary" in options)
    # KerasHub computes the angles in float32.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if options else 1e-11)


def test_equation_between_sequences():
    layer = attention([FullHeads(2)])
    y = checks.random(2, 5, WIDTH, seed=1, dtype="float64")
    masks = checks.padding(2, LENGTH), checks.padding(2, 5, "left")
    found = layer(X, y, query_mask=masks[0], value_mask=masks[1])
    kernels = {role: kernel.numpy() for role, kernel in kernels_of(layer).items()}
    expected = in_a_loop(layer, X, y, kernels, *masks)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_gradients_are_those_of_the_equation():
    layer, mask = attention(SEES_ALL), checks.padding(2, LENGTH)
    upstream = checks.random(2, LENGTH, WIDTH, seed=1)
    kernels, x = kernels_of(layer), tf.constant(X)
    sources = [x, *(kernel.value for kernel in kernels.values())]
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = layer(x, x, query_mask=mask, value_mask=mask, use_causal_mask=True)
    found = tape.gradient(output, sources, tf.constant(upstream, tf.float64))
    values = [X, *(kernel.numpy() for kernel in kernels.values())]

    def loss(changed):
        x, *of_roles = changed
        of_roles = dict(zip(kernels, of_roles))
        return np.sum(upstream * in_a_loop(layer, x, x, of_roles, mask, mask, causal=True))

    for place, gradient in enumerate(found):
        change = checks.random(*values[place].shape, seed=place, dtype="float64")
        before, after = (
            loss([*values[:place], values[place] + step * change, *values[place + 1 :]])
            for step in (-1e-5, 1e-5)
        )
        expected = (after - before) / 2e-5
        assert np.sum(gradient * change) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_training_starts_from_attention_without_convolutions():
    plain = attention(conv_kernel_size=None, dtype="float32")
    assert plain.query_convolution is None
    layer = MultiHeadAttention(copy_groups(SEES_ALL, "float32"), DEPTH, conv_kernel_size=4)
    x = X.astype("float32")
    layer.build(x.shape, x.shape)
    for role in ("query", "key", "value", "output"):
        weights = getattr(plain, f"{role}_dense").get_weights()
        getattr(layer, f"{role}_dense").set_weights(weights)
    np.testing.assert_array_equal(layer(x, x), plain(x, x))
    checks.trains_every_weight(layer, x, x)


@pytest.mark.parametrize("groups", [SHARED, READS_ON])
def test_no_output_depends_on_a_later_position(groups):
    layer = attention(groups)
    expected = layer(X, X, use_causal_mask=True)
    for i in range(LENGTH - 1):
        changed = X.copy()
        changed[:, i + 1 :] += 1
        found = layer(changed, changed, use_causal_mask=True)
        np.testing.assert_allclose(found[:, : i + 1], expected[:, : i + 1], rtol=0, atol=1e-12)
        assert checks.largest_difference(found[:, i + 1 :], expected[:, i + 1 :]) > 1e-3


@pytest.mark.parametrize("kind", ["left", "right"])
def test_the_content_of_padding_does_not_matter(kind):
    layer, mask = attention(SHARED), checks.padding(2, LENGTH, kind)
    changed = np.where(mask[..., None], X, 9)
    first, second = (layer(x, x, query_mask=mask, value_mask=mask) for x in (X, changed))
    np.testing.assert_allclose(first[mask], second[mask], rtol=0, atol=1e-12)


def test_global_tokens_have_convolved_queries():
    # Full heads see all keys anyway.
    layer = attention([FullHeads(2)], num_global_tokens=1)
    first = np.arange(LENGTH)[None].repeat(2, axis=0) == 0
    np.testing.assert_allclose(layer(X, X, global_mask=first), layer(X, X), rtol=0, atol=1e-12)


# Decoding.


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(
    "groups, options",
    [(ROUTED, {}), (SEES_ALL, {**GROUPED, "rotary": True, "conv_kernel_size": 4})],
    ids=["routed", "grouped and rotary"],
)
def test_decoding_equals_one_pass(groups, options, count):
    layer = attention(groups, **options)
    expected = layer(X, X, use_causal_mask=True)
    assert layer.cached_decoding
    found = checks.decode(layer, X, count)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if options else 1e-12)


def test_chunks_of_attention_with_rows_at_different_positions():
    layer = attention(READS_ON)
    expected = layer(X, X, use_causal_mask=True).numpy()
    cache, starts = layer.new_cache(2, LENGTH), np.zeros(2, "int32")
    padded = np.concatenate([X, np.full_like(X, 7)], axis=1)
    for counts in ([2, 4], [0, 1], [5, 0], [1, 3]):
        chunk = np.stack([padded[row, start : start + 5] for row, start in enumerate(starts)])
        positions = tf.constant(starts), tf.constant(counts)
        output, cache = layer.call_with_cache(chunk, cache, *positions)
        for row, (start, count) in enumerate(zip(starts, counts)):
            at = slice(start, start + count)
            np.testing.assert_allclose(output[row, :count], expected[row, at], rtol=0, atol=1e-9)
        starts += counts
    assert starts.tolist() == [LENGTH, LENGTH]


def test_the_last_vectors_are_the_last_entry_of_the_cache():
    layer, plain = attention(SHARED), attention(SHARED, conv_kernel_size=None)
    assert len(plain.new_cache(2, 9)) == len(SHARED)
    *caches, last = layer.new_cache(2, 9)
    tf.nest.assert_same_structure(tuple(caches), plain.new_cache(2, 9))
    shapes = {role: x.shape.as_list() for role, x in last.items()}
    assert shapes == {"query": [2, 2, 12], "key": [2, 2, 8], "value": [2, 2, 12]}
    with pytest.raises(ValueError, match="The cache has 3 entries but that of .* has 4. It must"):
        layer.call_with_cache(X[:, :1], plain.new_cache(2, 9), 0)


def test_no_cache_for_another_sequence():
    layer, plain = attention([FullHeads(2)]), attention([FullHeads(2)], conv_kernel_size=None)
    assert plain.cached_cross_attention and not layer.cached_cross_attention
    message = "conv_kernel_size must be None for cross-attention with a cache.*conv_kernel_size=3"
    with pytest.raises(ValueError, match=message):
        layer.make_cross_cache(X)
    with pytest.raises(ValueError, match=message):
        layer.call_with_cross_cache(X[:, :1], plain.make_cross_cache(X), 0)


# Keras.


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16", "mixed_bfloat16"])
def test_lower_precision(policy):
    layer, exact = attention(READS_ON[::2], policy), attention(READS_ON[::2])
    for weight, same in zip(layer.weights, exact.weights, strict=True):
        same.assign(tf.cast(weight, tf.float64))
    x = tf.cast(X, layer.compute_dtype)
    found = layer(x, x, use_causal_mask=True)
    assert found.dtype == layer.compute_dtype
    decoded = checks.decode(layer, x, 3)
    expected = exact(X, X, use_causal_mask=True).numpy()
    for output in (found, decoded):
        difference = checks.largest_difference(tf.cast(output, "float64"), expected)
        assert difference < 0.05 * np.max(np.abs(expected))
    dtypes = {y.dtype for y in tf.nest.flatten(layer.new_cache(2, 9)[-1])}
    assert dtypes == {tf.as_dtype(layer.compute_dtype)}


@pytest.mark.parametrize("shape", [(0, 9), (2, 0), (2, LENGTH)])
def test_compiled_for_any_batch_and_length(shape):
    layer = attention(dtype="float32")
    x = checks.random(*shape, WIDTH)
    mask = np.ones(shape, bool)

    def train(x, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, x, query_mask=mask, value_mask=mask, use_causal_mask=True)
        return y, tape.gradient(y, x)

    expected = train(tf.constant(x), tf.constant(mask))
    specs = tf.TensorSpec([None, None, WIDTH]), tf.TensorSpec([None, None], tf.bool)
    found = tf.function(train, input_signature=specs, jit_compile=True)(x, mask)
    for a, b in zip(found, expected):
        assert a.shape == (*shape, WIDTH)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_saved_and_loaded(tmp_path):
    inputs = keras.Input([LENGTH, WIDTH])
    layer = MultiHeadAttention(copy_groups(SHARED, "float32"), DEPTH, conv_kernel_size=2)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    randomize(layer)
    x = X.astype("float32")
    checks.saves_and_loads(model, x, tmp_path)
    checks.config_makes_an_equal_layer(layer, x, x)
    assert layer.get_config()["conv_kernel_size"] == 2


@pytest.mark.parametrize("value", [0, 1, -1, 2.0, True, "4", [4, 4]])
def test_bad_kernel_sizes(value):
    message = "conv_kernel_size must be an integer of at least 2. Received: conv_kernel_size="
    with pytest.raises(ValueError, match=f"{message}{re.escape(repr(value))}"):
        MultiHeadAttention([FullHeads(2)], conv_kernel_size=value)
    with pytest.raises(ValueError, match=message):
        TransformerBlock([FullHeads(2)], 8, conv_kernel_size=value)
    with pytest.raises(ValueError, match="kernel_size must be an integer of at least 2"):
        ShortConvolution(value)


def test_projections_of_global_tokens_have_no_convolutions():
    options = {"num_global_tokens": 1, "global_projections": True, "conv_kernel_size": 3}
    with pytest.raises(ValueError, match="cannot be combined with a conv_kernel_size"):
        MultiHeadAttention([FullHeads(2)], **options)


# Blocks.


def test_blocks_convolve_self_attention():
    x, encoded = checks.random(2, LENGTH, 8), checks.random(2, 5, 8, seed=1)
    block = TransformerBlock([LocalHeads(2, 3)], 8, [FullHeads(2)], conv_kernel_size=3)
    expected = block(x, use_causal_mask=True, encoder_outputs=encoded)
    for role in ("query", "key", "value"):
        randomize(getattr(block.attention, f"{role}_convolution"))
    changed = block(x, use_causal_mask=True, encoder_outputs=encoded)
    assert checks.largest_difference(changed, expected) > 1e-2
    assert block.attention.conv_kernel_size == 3
    assert block.cross_attention.conv_kernel_size is None
    assert block.cached_decoding
    cross_cache = block.cross_attention.make_cross_cache(encoded)
    output, cache = block.prefill(x[:, :5], 4, LENGTH, cross_cache=cross_cache)
    outputs = [output[:, :4]]
    for position in range(4, LENGTH):
        at = slice(position, position + 1)
        output, cache = block.call_with_cache(x[:, at], cache, position, cross_cache)
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), changed, rtol=0, atol=1e-5)
