import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from tests.layers import checks
from tests.layers.test_transformer_block import WIDTH, block


@pytest.mark.parametrize(
    "normalize_first, shift_tokens, count", [(True, True, 5), (False, True, 0), (False, False, 5)]
)
def test_decoding_equals_one_pass(normalize_first, shift_tokens, count):
    layer = block(
        dtype="float64",
        normalize_first=normalize_first,
        shift_tokens=shift_tokens,
        conv_kernel_size=3,
        dropout=0.5,
    )
    layer.build([None, None, WIDTH])
    for role in ("query", "key", "value"):
        kernel = getattr(layer.attention, f"{role}_convolution").kernel
        kernel.assign(checks.random(*kernel.shape))
    x = checks.random(2, 9, WIDTH, dtype="float64")
    expected = layer(x, use_causal_mask=True, training=False)
    assert layer.cached_decoding
    np.testing.assert_allclose(checks.decode(layer, x, count), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift_tokens", [False, True])
def test_decoding_with_an_encoder(shift_tokens):
    cross = [FullHeads(1), LocalHeads(2, 3, key_block_size=2)]
    layer = block(shift_tokens=shift_tokens, cross_head_groups=cross)
    x, encoded = checks.random(2, 9, WIDTH), checks.random(2, 6, WIDTH, seed=1)
    mask = checks.padding(2, 6)
    expected = layer(x, use_causal_mask=True, encoder_outputs=encoded, encoder_padding_mask=mask)
    cross_cache = layer.cross_attention.make_cross_cache(encoded, mask)
    output, cache = layer.prefill(x[:, :6], 4, 9, cross_cache=cross_cache)
    np.testing.assert_allclose(output, expected[:, :6], rtol=0, atol=1e-5)
    for position in range(4, 9):
        at = slice(position, position + 1)
        output, cache = layer.call_with_cache(x[:, at], cache, position, cross_cache=cross_cache)
        np.testing.assert_allclose(output, expected[:, at], rtol=0, atol=1e-5)


def test_blocks_without_a_cache():
    assert not block("balanced").cached_decoding
    balanced = RoutingHeads(2, 3, 4, assignment="balanced")
    assert not block(cross_head_groups=[balanced]).cached_decoding


def test_decoding_in_bfloat16():
    policy = "bfloat16"
    layer = block(dtype=policy, heads=[LocalHeads(3, 4, max_relative_distance=3, dtype=policy)])
    x = tf.cast(checks.random(2, 9, WIDTH), "bfloat16")
    expected = layer(x, use_causal_mask=True)
    found = checks.decode(layer, x, 4)
    assert found.dtype == expected.dtype == "bfloat16"
    assert {x.dtype for x in tf.nest.flatten(layer.new_cache(2, 9))} == {tf.bfloat16}
    assert checks.largest_difference(tf.cast(found, "float32"), tf.cast(expected, "float32")) < 5e-2
