import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import full_attention
from rt_keras.ops.full import full_cache, full_step, naive_full
from tests.ops import checks


def test_in_chunks(monkeypatch):
    # A limit of 1 takes one query at a time.
    allowed = np.random.default_rng(3).random((2, 7, 6)) < 0.7
    checks.holds_in_chunks(
        full_attention,
        checks.arrays(7, keys=6, far=2),
        monkeypatch,
        causal=True,
        query_mask=checks.mask("right", 7),
        key_mask=checks.mask("scattered", 6),
        attention_mask=allowed,
    )


def test_logsumexp(monkeypatch):
    inputs = checks.arrays(6, keys=8)
    logits = np.einsum("bhid,bhjd->bhij", inputs["query"], inputs["key"]) * 6**-0.5
    for limit in (2**20, 1):
        checks.at_most_logits(limit, monkeypatch)
        output, found = full_attention(**checks.tensors(inputs), return_logsumexp=True)
        np.testing.assert_allclose(found, np.log(np.exp(logits).sum(axis=-1)), rtol=1e-12)
        np.testing.assert_allclose(output, naive_full(**inputs), rtol=0, atol=1e-12)


def test_a_causal_mask_does_not_depend_on_the_first_query():
    inputs = checks.tensors(checks.arrays(9))
    for first in (np.nan, np.inf, -np.inf):
        query = tf.concat([tf.fill([2, 2, 1, 6], tf.cast(first, tf.float64)), inputs["query"]], 2)
        key, value = (tf.concat([x[:, :, :1], x], 2) for x in (inputs["key"], inputs["value"]))
        found = full_attention(query, key, value, causal=True)[:, :, 1:]
        assert np.all(np.isfinite(found))
        mask = np.tril(np.ones([10, 10], bool))[None]
        same = full_attention(query, key, value, attention_mask=mask)[:, :, 1:]
        np.testing.assert_allclose(found, same, rtol=0, atol=1e-12)


def test_a_position_behind_the_end():
    x = tf.zeros([1, 1, 1, 4])
    cache = full_cache(x, x, max_length=3)
    with pytest.raises(ValueError, match="holds 3 positions, 0 to 2. Received: position=3"):
        full_step(x, x, x, cache, 3)
