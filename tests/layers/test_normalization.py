import keras
import numpy as np
import pytest

from rt_keras.layers import LocalHeads, ResidualWeight, ScaleNormalization, TransformerBlock
from rt_keras.layers.normalization import NORMALIZATIONS
from tests.layers import checks


def test_all_vectors_have_the_same_length():
    layer, x = ScaleNormalization(), checks.random(2, 5, 6)
    found = layer(x)
    expected = np.sqrt(6) * x / np.linalg.norm(x, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    layer.scale.assign(2.0)
    np.testing.assert_allclose(np.linalg.norm(layer(x), axis=-1), 2.0, rtol=1e-5)
    np.testing.assert_array_equal(layer(np.zeros([1, 6], "float32")), np.zeros([1, 6]))
    checks.config_makes_an_equal_layer(layer, x)
    checks.trains_every_weight(layer, x)


def test_large_numbers_of_half_precision_do_not_overflow():
    x = 1e3 * checks.random(1, 64)
    found = ScaleNormalization(dtype="mixed_float16")(x)
    assert found.dtype == "float16"
    np.testing.assert_allclose(np.linalg.norm(np.float32(found)), 8.0, rtol=1e-2)


def test_a_residual_weight_starts_at_0():
    layer, x = ResidualWeight(), checks.random(2, 5, 6)
    assert not np.any(layer(x))
    layer.weight.assign(0.5)
    np.testing.assert_allclose(layer(x), 0.5 * x, rtol=1e-6)
    checks.config_makes_an_equal_layer(layer, x)


def make_block(normalization, **options):
    return TransformerBlock([LocalHeads(2, 4)], 16, normalization=normalization, **options)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_blocks(normalization):
    block, x = make_block(normalization), checks.random(2, 9, 8)
    found = block(x, use_causal_mask=True)
    if normalization == "rezero":
        np.testing.assert_array_equal(found, x)
        block.attention_norm.weight.assign(0.7)
        block.feed_forward_norm.weight.assign(-0.4)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    checks.trains_every_weight(block, x, use_causal_mask=True)
    expected = block(x, use_causal_mask=True)
    _, cache = block.prefill(x[:, :5], count=5, max_length=9)
    output, _ = block.call_with_cache(x[:, 5:], cache, 5)
    np.testing.assert_allclose(output, expected[:, 5:], rtol=0, atol=1e-5)


def test_rezero_scales_the_branches():
    block, x = make_block("rezero"), checks.random(1, 5, 8)
    block(x, use_causal_mask=True)
    block.attention_norm.weight.assign(0.7)
    block.feed_forward_norm.weight.assign(-0.4)
    y = x + 0.7 * block.attention(x, x, use_causal_mask=True)
    y = y - 0.4 * block.feed_forward(y)
    np.testing.assert_allclose(block(x, use_causal_mask=True), y, rtol=0, atol=1e-5)


def test_scale_norm_after_the_residual():
    found = make_block("scale_norm", normalize_first=False)(checks.random(1, 5, 8))
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), np.sqrt(8), rtol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"normalization": "batch_norm"}, "normalization must be one of .*'batch_norm'"),
        (
            {"normalization": "rezero", "normalize_first": False},
            "needs normalize_first=True",
        ),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        make_block(**options)


def test_masks_pass():
    x = keras.layers.Masking()(checks.random(1, 3, 4))
    for layer in (ScaleNormalization(), ResidualWeight()):
        assert checks.mask_of(layer(x)) == [[True, True, True]]
