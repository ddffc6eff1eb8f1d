import numpy as np
import pytest

from rt_keras.t2t import T2TLocalHeads
from rt_keras.t2t.token_bias import token_bias_of
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def test_causal_attention_has_the_decoders_and_all_other_the_encoders():
    group, x = T2TLocalHeads(2, 4, token_bias="fixed"), checks.random(1, 2, 9, 6)
    bias = checks.random(1, 9, seed=1)
    for own, other in (("encoder", "decoder"), ("decoder", "encoder")):
        causal = own == "decoder"
        plain = group(x, x, x, use_causal_mask=causal)
        with token_bias_of(**{own: bias}):
            assert checks.largest_difference(group(x, x, x, use_causal_mask=causal), plain) > 1e-2
            with token_bias_of(**{other: bias}):
                np.testing.assert_array_equal(group(x, x, x, use_causal_mask=causal), plain)
