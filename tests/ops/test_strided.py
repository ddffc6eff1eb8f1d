import numpy as np
import pytest

from rt_keras.ops import strided_attention
from tests.ops import checks


def test_what_is_seen():
    options = {"stride": 4, "causal": True}
    attention = checks.attention_of(strided_attention, checks.arrays(10), options)
    assert np.flatnonzero(attention[0, 0, 9]).tolist() == [1, 5, 9]
    assert np.flatnonzero(attention[0, 0, 3]).tolist() == [3]


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        strided_attention(**checks.tensors(checks.arrays(5, keys=7)), stride=4)


def test_the_mask_of_all_columns_is_no_constant_of_the_program():
    stride, steps = 8, 32
    inputs = checks.arrays(stride * steps, batch=1)
    largest = checks.largest_constant(strided_attention, inputs, stride=stride, causal=True)
    assert largest <= steps**2
