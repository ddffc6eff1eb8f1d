import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import first_tokens_attention
from rt_keras.ops.first_tokens import first_tokens_cache, first_tokens_chunk
from tests.ops import checks, chunk_checks, reference
from tests.ops.cases import of_each_head, with_two_key_heads


def beside(query_positions, key_positions):
    """The keys of a window of two positions."""
    return abs(query_positions - key_positions) < 2


def attention(**arguments):
    return first_tokens_attention(**arguments)[0]


def loop(query, key, value, num_first_tokens, outside=(), **options):
    places = np.arange(query.shape[2])
    seen = np.tile(places < num_first_tokens, [len(query), len(places), 1])
    for covers in outside:
        seen &= ~covers(places[:, None], places)
    return reference.full(query, key, value, attention_mask=seen, **options)


@pytest.mark.parametrize("length, first", [(9, 4), (3, 5), (1, 1)])
@pytest.mark.parametrize("padding", [None, "left", "scattered", "a whole row"])
def test_equation(length, first, padding):
    inputs, mask = with_two_key_heads(checks.arrays(length, heads=4)), checks.mask(padding, length)
    options = {"num_first_tokens": first, "query_mask": mask, "key_mask": mask}
    for causal, outside in ((False, (beside,)), (True, ()), (True, (beside,))):
        checks.holds(
            attention, of_each_head(loop), inputs, **options, causal=causal, outside=outside
        )


def test_compiled_by_xla():
    inputs = with_two_key_heads(checks.arrays(9, heads=4))
    checks.holds_compiled(attention, inputs, num_first_tokens=4, causal=True)


def test_chunks_are_one_pass():
    inputs = checks.arrays(17)
    expected = first_tokens_attention(
        **checks.tensors(inputs), num_first_tokens=5, causal=True, outside=(beside,)
    )[0]
    nothing = (tf.zeros([2, 2, 0, size], tf.float64) for size in (6, 5))
    cache = first_tokens_cache(*nothing, num_first_tokens=5)

    def chunk(*arguments, **options):
        (output, _), cache = first_tokens_chunk(*arguments, **options)
        return output, cache

    options = {"outside": (beside,)}
    found, _ = chunk_checks.in_chunks(cache, chunk, inputs, [1, 4, 11, 17], **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    chunk_checks.rows_at_own_positions(cache, chunk, inputs, [2, 9], 6, **options)


def test_what_does_not_count_changes_no_cache():
    x = tf.constant(np.random.default_rng(0).normal(size=[2, 1, 4, 3]))
    before = first_tokens_cache(x[:, :, :1], x[:, :, :1], num_first_tokens=6)
    count = tf.constant([0, 2])
    _, after = first_tokens_chunk(x, x, x, before, tf.constant([1, 1]), count=count)
    np.testing.assert_array_equal(after["key"][0], before["key"][0])
    np.testing.assert_array_equal(after["key"][1, :, 1:3], x[1, :, :2])
    np.testing.assert_array_equal(after["key"][1, :, 3:], before["key"][1, :, 3:])
