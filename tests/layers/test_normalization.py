import numpy as np
import pytest

from rt_keras.layers import LocalHeads, TransformerBlock
from rt_keras.layers.normalization import NORMALIZATIONS
from tests.layers import checks


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_blocks(normalization):
    block = TransformerBlock([LocalHeads(2, 4)], 16, normalization=normalization)
    x = checks.random(2, 9, 8)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    checks.trains_every_weight(block, x, use_causal_mask=True)
    expected = block(x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(block, x, 5), expected, rtol=0, atol=1e-5)
