import keras
import numpy as np
import pytest

from rt_keras.layers import LocalHeads, ProductKeyMemory, TransformerBlock
from rt_keras.layers.product_key_memory import memory_use
from tests.layers import checks


def make_layer(**options):
    keras.utils.set_random_seed(0)
    return ProductKeyMemory(**{"num_keys": 5, "num_heads": 2, "top_k": 3, "key_dim": 4, **options})


def test_blocks():
    x = checks.random(2, 9, 8)
    block = TransformerBlock([LocalHeads(2, 4)], 16, product_keys=4)
    expected = block(x, use_causal_mask=True)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(block, x, 5), expected, rtol=0, atol=1e-5)
    model = keras.Sequential([keras.Input([9, 8]), block])
    assert memory_use(model) == {"memory_0_used": 0, "memory_0_even": 0}
    block(x, use_causal_mask=True, training=True)
    assert 0 < memory_use(model)["memory_0_even"] <= memory_use(model)["memory_0_used"] <= 1
    with pytest.raises(ValueError, match="top_k must be at most num_keys, 5. Received: top_k=6"):
        make_layer(top_k=6)
    with pytest.raises(ValueError, match="num_experts and product_keys cannot be combined"):
        TransformerBlock([LocalHeads(2, 4)], 16, num_experts=2, product_keys=4)
