"""The layer of short convolutions, and `conv_kernel_size` of attention and blocks."""

import functools
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
from rt_keras.ops.convolution import naive_convolution
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

KERNEL_SIZE, LENGTH, WIDTH, DEPTH = 3, 8, 6, 4
X = checks.random(2, LENGTH, WIDTH, dtype="float64")
SEES_ALL = [FullHeads(2), LocalHeads(2, 3)]
SHARED = [LocalHeads(1, 3), RoutingHeads(1, 2, 3, share_qk=True), FullHeads(1)]
ROUTED = [*SHARED, LocalRoutingHeads(1, 2, 3, 4), RoutingHeads(1, 3, 4, num_probes=2)]
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
    one_head = naive_convolution(x[:, None], kernel[None], mask)
    return x + one_head[:, 0]


# The layer.


@pytest.mark.parametrize("kernel_size, kind", [(2, "left"), (3, "right")])
def test_equation(kernel_size, kind):
    layer, mask = ShortConvolution(kernel_size, dtype="float64"), checks.padding(2, LENGTH, kind)
    np.testing.assert_array_equal(layer(X), X)
    checks.trains_every_weight(layer, X)
    (kernel,) = randomize(layer).get_weights()
    assert kernel.shape == (kernel_size, WIDTH)
    found = layer(X, mask=mask)
    assert found.shape == layer.compute_output_shape(X.shape)
    np.testing.assert_allclose(found, convolved(X, kernel, mask), rtol=0, atol=1e-12)
    assert ShortConvolution.from_config(layer.get_config()).kernel_size == kernel_size


# Attention.


@pytest.mark.parametrize(
    "groups, options, kind",
    [
        (SHARED, {}, "left"),
        (SEES_ALL, {**GROUPED, "rotary": True}, "right"),
        ([FullHeads(2)], {}, "left"),
    ],
    ids=["shared", "grouped and rotary", "another sequence"],
)
def test_groups_get_convolved_vectors(groups, options, kind):
    layer, plain = attention(groups, **options), attention(groups, **options, conv_kernel_size=None)
    y = checks.random(2, 5, WIDTH, seed=1, dtype="float64") if len(groups) == 1 else X
    query_mask, key_mask = checks.padding(2, LENGTH, "right"), checks.padding(2, y.shape[1], kind)

    def equation(role, mask, x):
        dense, kernel = (getattr(layer, f"{role}_{part}") for part in ("dense", "convolution"))
        return tf.constant(convolved(dense(x).numpy(), kernel.kernel.numpy(), mask))

    for role, mask in (("query", query_mask), ("key", key_mask), ("value", key_mask)):
        setattr(plain, f"{role}_dense", functools.partial(equation, role, mask))
    plain.output_dense.set_weights(layer.output_dense.get_weights())
    found, expected = (x(X, y, query_mask=query_mask, value_mask=key_mask) for x in (layer, plain))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


# Decoding.


@pytest.mark.parametrize(
    "groups, options, count",
    [
        (ROUTED, {"use_head_dense": True, "value_dim": 3}, 5),
        (SEES_ALL, {**GROUPED, "rotary": True, "conv_kernel_size": 4}, 0),
        (SEES_ALL, {**GROUPED, "rotary": True, "conv_kernel_size": 4}, 1),
    ],
)
def test_decoding_equals_one_pass(groups, options, count):
    layer = attention(groups, **options)
    expected = layer(X, X, use_causal_mask=True)
    assert layer.cached_decoding
    found = checks.decode(layer, X, count)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if "rotary" in options else 1e-12)


def test_no_cache_for_another_sequence():
    layer, plain = attention([FullHeads(2)]), attention([FullHeads(2)], conv_kernel_size=None)
    assert plain.cached_cross_attention and not layer.cached_cross_attention
    message = "conv_kernel_size must be None for cross-attention with a cache.*conv_kernel_size=3"
    with pytest.raises(ValueError, match=message):
        layer.make_cross_cache(X)
    with pytest.raises(ValueError, match=message):
        layer.call_with_cross_cache(X[:, :1], plain.make_cross_cache(X), 0)


# Keras.


@pytest.mark.parametrize("value", [1, 2.0, True, [4, 4]])
def test_bad_kernel_sizes(value):
    message = "conv_kernel_size must be an integer of at least 2. Received: conv_kernel_size="
    with pytest.raises(ValueError, match=f"{message}{re.escape(repr(value))}"):
        MultiHeadAttention([FullHeads(2)], conv_kernel_size=value)
    with pytest.raises(ValueError, match=message):
        TransformerBlock([FullHeads(2)], 8, conv_kernel_size=value)
    with pytest.raises(ValueError, match="kernel_size must be an integer of at least 2"):
        ShortConvolution(value)
