import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import first_tokens_attention
from rt_keras.ops.first_tokens import first_tokens_cache, first_tokens_chunk
from tests.ops import checks, chunk_checks


def beside(query_positions, key_positions):
    """The keys of a window of two positions."""
    return abs(query_positions - key_positions) < 2


def attention(**arguments):
    return first_tokens_attention(**arguments)[0]


def loop(
    query,
    key,
    value,
    num_first_tokens,
    causal=False,
    outside=(),
    query_mask=None,
    key_mask=None,
):
    batch, heads, length, depth = query.shape
    output = np.zeros([*query.shape[:3], value.shape[3]])
    for b, h, i in np.ndindex(batch, heads, length):
        if query_mask is not None and not query_mask[b, i]:
            continue
        seen = [
            j
            for j in range(min(num_first_tokens, key.shape[2]))
            if (j <= i or not causal)
            and not any(covers(i, j) for covers in outside)
            and (key_mask is None or key_mask[b, j])
        ]
        of_head = h * key.shape[1] // heads
        if seen:
            weights = np.exp(key[b, of_head, seen] @ query[b, h, i] / np.sqrt(depth))
            output[b, h, i] = weights @ value[b, of_head, seen] / weights.sum()
    return output


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("outside", [(), (beside,)])
@pytest.mark.parametrize("length, first", [(9, 4), (3, 5), (1, 1)])
def test_equation(causal, outside, length, first):
    options = {"num_first_tokens": first, "causal": causal, "outside": outside}
    checks.holds(attention, loop, checks.arrays(length), **options)


@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(padding):
    mask = checks.mask(padding, 9)
    options = {"num_first_tokens": 4, "query_mask": mask, "key_mask": mask}
    checks.holds(attention, loop, checks.arrays(9), **options)


def test_key_heads_serve_several_heads():
    inputs, query = checks.arrays(9), checks.arrays(9, seed=1)["query"]
    inputs["query"] = np.concatenate([inputs["query"], query], axis=1)
    options = {"num_first_tokens": 4, "causal": True}
    checks.holds(attention, loop, inputs, **options)
    checks.holds_compiled(attention, inputs, **options)


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
