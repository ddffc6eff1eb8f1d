"""The heads of the authors' code; the golden cases in `test_checkpoint.py` have their numbers."""

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import ops
from rt_keras.convert.t2t.heads import T2THashedHeads, T2TLocalHeads, T2TStridedHeads
from rt_keras.convert.t2t.local import local_attention
from rt_keras.convert.t2t.token_bias import token_bias_of
from rt_keras.layers import MultiHeadAttention
from rt_keras.ops.attend import PART_SIZE
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.mark.parametrize("grid, prompt", [(None, 5), ((3, 2), 0)])
def test_steps_are_one_pass(grid, prompt):
    options = {"max_relative_distance": 2, "dtype": "float64"}
    groups = [T2TLocalHeads(1, 2, grid=grid, **options), T2TStridedHeads(1, 3, **options)]
    attention = MultiHeadAttention(groups, 4, dtype="float64")
    x = checks.random(2, 12, 6, dtype="float64")
    expected = attention(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(attention, x, prompt), expected, rtol=0, atol=1e-12)


def test_steps_of_attention_to_an_encoder_are_one_pass():
    group = T2TLocalHeads(2, 3, key_block_size=2, max_relative_distance=2, dtype="float64")
    query, key, value = (
        tf.constant(checks.random(2, 2, n, 6, seed=n, dtype="float64")) for n in (9, 6, 6)
    )
    expected = group(query, value, key)
    for position in range(9):
        at = slice(position, position + 1)
        output = group.cross_attention_step(query[:, :, at], value, key, position)
        np.testing.assert_allclose(output, expected[:, :, at], rtol=0, atol=1e-12)


def test_causal_attention_has_the_decoders_and_all_other_the_encoders():
    group, x = T2TLocalHeads(2, 4, token_bias="fixed"), checks.random(1, 2, 9, 6)
    bias = checks.random(1, 9, seed=1)
    for own, other in (("encoder", "decoder"), ("decoder", "encoder")):
        causal = own == "decoder"
        plain = group(x, x, x, use_causal_mask=causal)
        with token_bias_of(**{own: bias}):
            assert checks.largest_difference(group(x, x, x, use_causal_mask=causal), plain) > 1e-2
            with token_bias_of(**{other: bias}):
                np.testing.assert_array_equal(group(x, x, x, use_causal_mask=causal), plain)


def test_split_heads_are_orthonormal_and_drawn_from_the_seed():
    groups = [T2THashedHeads(2, 7, 4, 5, seed=3, dtype=x) for x in ("mixed_bfloat16", "float32")]
    for group in groups:
        group.build((None, 2, None, 6), (None, 2, None, 6))
    flat = groups[0].projections.numpy().reshape(-1, 6)
    np.testing.assert_allclose(flat @ flat.T, np.eye(2 * 2), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(groups[1].projections, groups[0].projections)
    with pytest.raises(ValueError, match="num_buckets must be at least 2. Received: 1"):
        T2THashedHeads(2, 1, 4, 5)


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_of_no_positions_are_empty(causal):
    x = tf.zeros([2, 2, 0, 6])
    found = T2THashedHeads(2, 4, 5, 4)(x, x, x, use_causal_mask=causal)
    assert found.shape == x.shape


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{"block_size": 4}, {"block_size": 2, "grid": (2, 3)}])
def test_local_attention_is_that_of_the_ops_where_queries_have_keys(causal, options):
    x, key, value = (checks.random(2, 2, 12, 6, seed=seed) for seed in range(3))
    options |= {"causal": causal, "key_mask": np.arange(12) < np.array([[12], [8]])}
    expected = ops.local_attention(x, key, value, **options)
    found = local_attention(x, key, value, **options)
    # The queries after padding may have no key.
    np.testing.assert_allclose(found[:, :, :8], expected[:, :, :8], rtol=0, atol=1e-5)


def test_queries_without_keys_get_the_mean_of_their_window():
    # A block that is computed in parts.
    length = 2 * PART_SIZE
    x, key_mask = checks.random(1, 2, length, 6), np.arange(length)[None] >= 3
    found = local_attention(x, x, x, block_size=length, causal=True, key_mask=key_mask)
    # Also of later keys, and of the zeros of the block before the first.
    mean = np.sum(x, axis=2, keepdims=True) / (2 * length)
    np.testing.assert_allclose(found[:, :, :3], np.repeat(mean, 3, axis=2), rtol=0, atol=1e-5)


def test_token_biases_are_added_to_the_logits():
    x, bias = checks.random(1, 2, 8, 6), checks.random(1, 8, seed=1)
    found = local_attention(0 * x, x, x, block_size=8, look_back=0, token_bias=bias)
    mean = np.einsum("bj,bhjd->bhd", np.exp(bias) / np.sum(np.exp(bias)), x)
    np.testing.assert_allclose(found, np.repeat(mean[:, :, None], 8, axis=2), rtol=0, atol=1e-5)
