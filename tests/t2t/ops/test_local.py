import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.local_decode import local_cache
from rt_keras.t2t.ops import local_attention, local_cross_step, local_step
from tests.ops import checks, decode_checks
from tests.t2t import reference
from tests.t2t.ops.checks import arrays

SHAPES = [{"block_size": 4}, {"block_size": 2, "grid": (2, 3)}]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", SHAPES)
def test_equation(causal, options):
    # With padding at the start, queries without keys get the mean of their window.
    checks.holds(
        local_attention,
        reference.local,
        arrays(12, far=3, token_bias=True),
        causal=causal,
        query_mask=checks.mask("right", 12),
        key_mask=np.arange(12) >= np.array([[3], [11]]),
        **options,
    )


@pytest.mark.parametrize("padding", [None, "scattered"])
def test_in_parts(padding, monkeypatch):
    monkeypatch.setattr("rt_keras.ops.attend.PART_SIZE", 2)
    checks.holds(
        local_attention,
        reference.local,
        arrays(17, far=3, token_bias=True),
        block_size=5,
        causal=True,
        key_mask=checks.mask(padding, 17),
    )


def test_key_block_size():
    checks.holds(
        local_attention,
        reference.local,
        arrays(9, keys=6, far=2, token_bias=True),
        block_size=3,
        key_block_size=2,
        key_mask=checks.mask("scattered", 6),
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("options", SHAPES)
def test_compiled(options):
    checks.holds_compiled(
        local_attention, arrays(12, far=3, token_bias=True), causal=True, **options
    )


def test_in_chunks(monkeypatch):
    checks.holds_in_chunks(
        local_attention,
        arrays(11, far=2, token_bias=True, heads=4),
        monkeypatch,
        block_size=3,
        causal=True,
        key_mask=checks.mask("scattered", 11),
    )


@pytest.mark.parametrize("length, count", [(24, 0), (24, 9), (13, 4)])
@pytest.mark.parametrize("look_back", [1, (1, 0), (2, 1)])
def test_steps(length, count, look_back):
    blocks = {"block_size": 4, "look_back": look_back, "grid": (3, 2)}
    if length == 13:
        blocks = {"block_size": 4}
    inputs = arrays(length, far=5)

    def make_cache(key, value, count):
        return local_cache(key, value, count, **blocks)

    found = decode_checks.decode(make_cache, local_step, inputs, count, **blocks)
    decode_checks.same(found, local_attention, inputs, count, **blocks)


@pytest.mark.parametrize("padding", [None, "right", "a whole row"])
def test_cross_step(padding):
    inputs = checks.tensors(arrays(9, keys=6, far=2))
    options = {"block_size": 4, "key_block_size": 2, "key_mask": checks.mask(padding, 6)}
    expected = local_attention(**inputs, **options)
    query = inputs.pop("query")
    for position in range(9):
        beams = tf.repeat(query[:, :, position : position + 1], 2, axis=2)
        found = local_cross_step(beams, position=position, **inputs, **options)
        for beam in (found[:, :, 0], found[:, :, 1]):
            np.testing.assert_allclose(beam, expected[:, :, position], rtol=0, atol=1e-12)
