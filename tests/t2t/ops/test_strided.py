import pytest

from rt_keras.ops.strided_decode import strided_cache
from rt_keras.t2t.ops import strided_attention, strided_step
from tests.ops import checks, decode_checks
from tests.t2t import reference
from tests.t2t.ops.checks import arrays


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("far", [None, 2])
def test_equation(causal, far):
    # Masks have no effect, and zeros pad the last stride.
    mask = checks.mask("scattered", 14)
    checks.holds(
        strided_attention,
        reference.strided,
        arrays(14, far=far),
        stride=4,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
    )


def test_compiled():
    checks.holds_compiled(strided_attention, arrays(11, far=3), stride=4, causal=True)


def test_in_chunks(monkeypatch):
    inputs = arrays(11, far=2, heads=4)
    checks.holds_in_chunks(strided_attention, inputs, monkeypatch, stride=3, causal=True)


@pytest.mark.parametrize("count", [0, 6, 12])
@pytest.mark.parametrize("stride", [1, 4, 20])
def test_steps(count, stride):
    inputs = arrays(13, far=2)

    def make_cache(key, value, count, **options):
        return strided_cache(key, value, stride=stride, max_length=13, **options)

    found = decode_checks.decode(make_cache, strided_step, inputs, count, stride=stride)
    decode_checks.same(found, strided_attention, inputs, count, stride=stride)
