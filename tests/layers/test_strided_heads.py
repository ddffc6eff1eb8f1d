import pytest

from rt_keras.layers import StridedHeads
from tests.layers import checks


def test_bad_arguments():
    message = "stride must be an integer of at least 1. Received: stride=0"
    with pytest.raises(ValueError, match=message):
        StridedHeads(2, 0)
    query, value = checks.random(1, 2, 5, 6), checks.random(1, 2, 7, 6)
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        StridedHeads(2, 4)(query, value, value)
