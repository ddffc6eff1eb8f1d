import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.pretrained import chosen_keys
from rt_keras.benchmarks.pretrained.chosen_keys import ChosenKeys
from rt_keras.layers import Heads
from rt_keras.layers.key_sets import FirstTokens, Window

LENGTH, BLOCK, FIRST, KEYS = 40, 4, 2, 5


def union():
    return Heads(4, [Window(BLOCK), FirstTokens(FIRST), ChosenKeys(KEYS)])


def vectors(heads, seed):
    return np.random.default_rng(seed).normal(size=[2, heads, LENGTH, 8]).astype("float32")


def expected(query, key, value, causal=True, real=LENGTH):
    """Returns attention to the window, the first tokens and the best remaining keys."""
    key, value = (np.repeat(x, 2, axis=1) for x in (key, value))
    logits = query @ key.swapaxes(2, 3) / np.sqrt(8)
    own, places = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    allowed = (places < real) & ((places <= own) | (not causal))
    near = (abs(own // BLOCK - places // BLOCK) <= 1) | (places < FIRST)
    far = np.where(allowed & ~near, logits, -np.inf)
    least = np.sort(far, axis=-1)[..., -KEYS, None]
    seen = allowed & (near | (np.isfinite(far) & (far >= least)))
    weights = np.where(seen, np.exp(logits), 0)
    return weights / weights.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize("at_once", [16, 128])
def test_a_query_sees_the_best_of_the_keys_that_others_leave_out(monkeypatch, at_once):
    monkeypatch.setattr(chosen_keys, "QUERIES_AT_ONCE", at_once)
    query, key, value = vectors(4, 0), vectors(2, 1), vectors(2, 2)
    found = union()(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, expected(query, key, value), atol=1e-5)
    # In encoders, they lie on both sides and are no padding.
    mask = np.arange(LENGTH)[None] < [[33], [33]]
    found = union()(query, value, key, query_mask=mask, key_mask=mask)
    right = expected(query, key, value, causal=False, real=33)
    np.testing.assert_allclose(found[:, :, :33], right[:, :, :33], atol=1e-5)


def test_chunks_and_steps_see_what_the_whole_sequence_sees():
    query, key, value = vectors(4, 0), vectors(2, 1), vectors(2, 2)
    heads = union()
    whole = heads(query, value, key, use_causal_mask=True)
    cache, found = heads.new_cache(2, LENGTH, 8, 8), []
    for start, stop in [(0, 17), (17, 38), (38, 39), (39, 40)]:
        rows = (x[:, :, start:stop] for x in (query, value, key))
        output, cache = heads.call_with_cache(*rows, cache, tf.constant(start))
        found.append(output)
    np.testing.assert_allclose(tf.concat(found, axis=2), whole, atol=1e-5)
