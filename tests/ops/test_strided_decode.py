import pytest

from rt_keras.ops import strided_attention
from rt_keras.ops.strided_decode import strided_cache, strided_step
from tests.ops import checks, decode_checks


def beside(query_positions, key_positions):
    return abs(query_positions - key_positions) < 4


@pytest.mark.parametrize("stride, outside", [(1, None), (3, beside), (3, None), (20, beside)])
def test_steps(stride, outside):
    inputs, options = checks.arrays(13, far=2), {"stride": stride, "outside": outside}

    def make_cache(key, value, count):
        return strided_cache(key, value, stride=stride, max_length=13)

    found = decode_checks.decode(make_cache, strided_step, inputs, 5, **options)
    decode_checks.same(found, strided_attention, inputs, 5, **options)
    decode_checks.rows_at_own_positions(
        make_cache, strided_step, strided_attention, inputs, [2, 7], **options
    )
