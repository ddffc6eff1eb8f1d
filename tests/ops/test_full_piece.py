import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import full_attention
from rt_keras.ops.full_decode import full_cache, full_step
from rt_keras.ops.full_piece import full_piece
from tests.ops import checks, piece_checks


@pytest.mark.parametrize("far", [None, 5])
@pytest.mark.parametrize("token_bias", [False, True])
@pytest.mark.parametrize("ends", [[17], [1, 2, 17], [9, 17]], ids=str)
def test_pieces_are_one_pass(far, token_bias, ends):
    inputs = checks.arrays(17, far=far, token_bias=token_bias)
    given = checks.tensors(inputs)
    biased = {"token_bias": given["token_bias"]} if token_bias else {}
    cache = full_cache(given["key"], given["value"], max_length=20, **biased)
    found, _ = piece_checks.in_pieces(cache, full_piece, inputs, ends)
    expected = full_attention(**given, causal=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_steps_go_on_from_a_piece():
    inputs = checks.arrays(9)
    given = checks.tensors(inputs)
    cache = full_cache(given["key"], given["value"], max_length=9)
    parts = {name: x[:, :, :8] for name, x in inputs.items()}
    _, cache = piece_checks.in_pieces(cache, full_piece, parts, [8])
    last = (given[name][:, :, 8:] for name in ("query", "key", "value"))
    output, _ = full_step(*last, cache, 8)
    expected = full_attention(**given, causal=True)
    np.testing.assert_allclose(output, expected[:, :, 8:], rtol=0, atol=1e-12)


def test_a_cache_without_room():
    x = tf.zeros([1, 1, 4, 2])
    cache = full_cache(x, x, max_length=6)
    with pytest.raises(ValueError, match="holds 6 positions, 0 to 5. Received: position=7"):
        full_piece(x, x, x, cache, 4)


def test_rows_may_be_at_different_positions():
    inputs = checks.arrays(12, far=5)
    given = checks.tensors(inputs)
    cache = full_cache(given["key"], given["value"], max_length=12)
    piece_checks.rows_at_own_positions(cache, full_piece, inputs, [2, 7], 5)
