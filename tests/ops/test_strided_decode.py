import pytest

from rt_keras.ops import strided_attention
from rt_keras.ops.strided_decode import strided_cache, strided_step
from tests.ops import checks, decode_checks


@pytest.mark.parametrize("count", [0, 1, 6, 12])
@pytest.mark.parametrize("stride", [1, 4, 5, 20])
@pytest.mark.parametrize("options", [{}, {"far": 2, "token_bias": True}], ids=str)
def test_steps(count, stride, options):
    inputs = checks.arrays(13, **options)

    def make_cache(key, value, count, **options):
        return strided_cache(key, value, stride=stride, max_length=13, **options)

    found = decode_checks.decode(make_cache, strided_step, inputs, count, stride=stride)
    decode_checks.same(found, strided_attention, inputs, count, stride=stride)
