import keras
import numpy as np
import pytest

from rt_keras.layers import LocalHeads, MixtureOfExperts, TransformerBlock
from rt_keras.layers.mixture_of_experts import expert_use
from tests.layers import checks


def test_blocks():
    block = TransformerBlock([LocalHeads(2, 4)], 16, num_experts=3)
    x = checks.random(2, 9, 8)
    expected = block(x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(block, x, 5), expected, rtol=0, atol=1e-5)
    model = keras.Sequential([keras.Input([9, 8]), block])
    assert expert_use(model) == {"experts_0_busiest": 0, "experts_0_full": 0}
    block(x, use_causal_mask=True, training=True)
    assert 1 / 3 <= expert_use(model)["experts_0_busiest"] <= 1
    with pytest.raises(ValueError, match="cannot be combined.*feed_forward_chunk_size=4"):
        TransformerBlock([LocalHeads(2, 4)], 16, num_experts=3, feed_forward_chunk_size=4)
    with pytest.raises(ValueError, match="at most num_experts, 3. Received: experts_per_token=4"):
        MixtureOfExperts(3, 5, 4)
