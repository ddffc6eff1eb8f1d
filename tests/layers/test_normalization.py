import numpy as np
import pytest

from rt_keras.layers import LocalHeads, TransformerBlock
from rt_keras.layers.normalization import NORMALIZATIONS
from tests.layers import checks


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
        y = x + 0.7 * block.attention(x, x, use_causal_mask=True)
        y = y - 0.4 * block.feed_forward(y)
        np.testing.assert_allclose(block(x, use_causal_mask=True), y, rtol=0, atol=1e-5)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    checks.trains_every_weight(block, x, use_causal_mask=True)
    expected = block(x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(block, x, 5), expected, rtol=0, atol=1e-5)


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
