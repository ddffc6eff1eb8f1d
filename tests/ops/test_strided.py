import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import strided_attention
from tests.ops import checks, reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length, stride", [(12, 4), (13, 4), (3, 8), (1, 4), (5, 1)])
def test_equation(causal, shared, length, stride):
    checks.holds(
        strided_attention,
        reference.strided,
        checks.arrays(length, shared=shared),
        stride=stride,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, padding):
    checks.holds(
        strided_attention,
        reference.strided,
        checks.arrays(11),
        stride=3,
        causal=causal,
        query_mask=checks.mask(padding, 11),
        key_mask=checks.mask(padding, 11, seed=5),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("far", [1, 20])
def test_relative_positions(causal, far):
    inputs = checks.arrays(14, far=far)
    checks.holds(strided_attention, reference.strided, inputs, stride=3, causal=causal)


def test_what_is_seen():
    attention = checks.attention_of(
        strided_attention, checks.arrays(10), {"stride": 4, "causal": True}
    )
    assert np.flatnonzero(attention[0, 0, 9]).tolist() == [1, 5, 9]
    assert np.flatnonzero(attention[0, 0, 3]).tolist() == [3]


def test_causality():
    inputs = checks.arrays(13, far=3)
    for start in (1, 6, 12):
        assert checks.past_is_untouched(strided_attention, inputs, start, stride=4, causal=True)
    assert not checks.past_is_untouched(strided_attention, inputs, 6, stride=4, causal=False)


def test_in_chunks(monkeypatch):
    mask = checks.mask("scattered", 11)
    inputs = checks.arrays(11, far=2, heads=4)
    checks.holds_in_chunks(
        strided_attention,
        inputs,
        monkeypatch,
        stride=3,
        causal=True,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_compiled(causal):
    mask = checks.mask("left", 11)
    checks.holds_compiled(
        strided_attention,
        checks.arrays(11, far=3),
        stride=4,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
    )


def test_unknown_shapes():
    def inputs(length):
        batch = 1 + length % 3
        found = checks.arrays(length, far=2, batch=batch)
        mask = checks.mask("scattered", length, batch)
        return {**found, "query_mask": mask, "key_mask": mask}

    checks.holds_for_unknown_shapes(strided_attention, (8, 1, 13), inputs, stride=4, causal=True)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.03)])
def test_lower_precision(dtype, atol):
    checks.holds_in_lower_precision(
        strided_attention, reference.strided, checks.arrays(11, far=3), dtype, atol, stride=4
    )


def test_dropout():
    checks.drops_out(strided_attention, checks.arrays(9, batch=1), stride=2, causal=True)


def test_no_tensor_of_length_squared():
    length, stride = 1024, 32
    inputs = checks.arrays(length, far=4, batch=1, depth=4, value_depth=4)
    largest = checks.largest_tensor(strided_attention, inputs, stride=stride, causal=True)
    # n² is 32 times n² / stride.
    assert largest <= 4 * 2 * length * (length // stride)


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        strided_attention(**checks.tensors(checks.arrays(5, keys=7)), stride=4)


def test_numpy_arguments(monkeypatch):
    mask = checks.mask("scattered", 7)
    checks.takes_numpy(
        strided_attention,
        reference.strided,
        checks.arrays(7, far=2),
        monkeypatch,
        stride=3,
        query_mask=mask,
        key_mask=mask,
    )


def test_the_mask_of_all_columns_is_no_constant_of_the_program():
    stride, steps = 8, 32
    inputs = checks.arrays(stride * steps, batch=1)
    assert (
        checks.largest_constant(strided_attention, inputs, stride=stride, causal=True) <= steps**2
    )
