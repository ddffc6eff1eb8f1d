import keras
import numpy as np
import pytest

from rt_keras.layers import TokenDropout
from tests.layers import checks

IDS = np.arange(1, 4001, dtype="int32").reshape(4, 1000)


def test_a_fraction_of_tokens_is_0_in_training():
    layer = TokenDropout(0.3, seed=1)
    np.testing.assert_array_equal(layer(IDS), IDS)
    found = layer(IDS, training=True).numpy()
    assert found.dtype == "int32"
    kept = found != 0
    np.testing.assert_array_equal(found[kept], IDS[kept])
    # 5 standard errors of a binomial distribution.
    assert abs(np.mean(kept) - 0.7) < 5 * np.sqrt(0.3 * 0.7 / IDS.size)
    assert np.any(found != layer(IDS, training=True))
    np.testing.assert_array_equal(found, TokenDropout(0.3, seed=1)(IDS, training=True))
    np.testing.assert_array_equal(TokenDropout(0.0)(IDS, training=True), IDS)


def test_config():
    ids = keras.Input((None,), dtype="int32")
    output = TokenDropout(0.5, seed=2)(ids)
    assert output.shape == (None, None) and output.dtype == "int32"
    checks.config_makes_an_equal_layer(TokenDropout(0.5, seed=2), IDS)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_bad_rate(rate):
    with pytest.raises(ValueError, match=rf"rate must be in \[0, 1\). Received: rate={rate}"):
        TokenDropout(rate)
