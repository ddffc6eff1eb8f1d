import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import full, full_attention
from rt_keras.ops.full import full_cache, full_chunk, full_step, naive_full_attention
from tests.ops import checks

LENGTH = 29


def test_in_chunks(monkeypatch):
    # A limit of 1 takes one query at a time.
    allowed = np.random.default_rng(3).random((2, 7, 6)) < 0.7
    checks.holds_in_slices(
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
        np.testing.assert_allclose(output, naive_full_attention(**inputs), rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("read, length, position", [(full_step, 1, 3), (full_chunk, 2, 2)])
def test_positions_behind_the_end(read, length, position):
    x = tf.zeros([1, 1, length, 4])
    cache = full_cache(x, x, max_length=3)
    with pytest.raises(ValueError, match="holds 3 positions, 0 to 2. Received: position=3"):
        read(x, x, x, cache, position)


def grouped_inputs():
    """Queries, keys and values of six heads, two of which share keys."""
    shapes = (2, 6, LENGTH, 4), (2, 3, LENGTH, 4), (2, 3, LENGTH, 5)
    return [tf.constant(np.random.default_rng(i).normal(size=x)) for i, x in enumerate(shapes)]


@pytest.mark.parametrize(
    "jit_compile, room, with_relative", [(False, 29, True), (True, 32, True), (False, 32, False)]
)
def test_blocks_of_keys_give_what_all_at_once_do(monkeypatch, jit_compile, room, with_relative):
    monkeypatch.setattr(full, "KEYS_AT_ONCE", 8)
    query, key, value = inputs = grouped_inputs()
    options = {"return_logsumexp": True}
    if with_relative:
        options["relative_embeddings"] = np.random.default_rng(5).normal(size=(6, 7, 4))
    expected = full_attention(query, key, value, causal=True, **options)
    chunk = tf.function(functools.partial(full_chunk, **options), jit_compile=jit_compile)
    start = 5
    cache = full_cache(key[:, :, :start], value[:, :, :start], max_length=room)
    for position in range(start, LENGTH, 8):
        part = slice(position, position + 8)
        results, cache = chunk(*(x[:, :, part] for x in inputs), cache, tf.constant(position))
        for x, y in zip(results, expected):
            np.testing.assert_allclose(x, y[:, :, part], atol=1e-12)


def test_rows_at_positions_of_their_own_read_blocks_of_keys(monkeypatch):
    query, key, value = grouped_inputs()
    cache = full_cache(key[:, :, :20], value[:, :, :20], max_length=40)
    options = {"cache": cache, "position": tf.constant([20, 3]), "count": tf.constant([9, 2])}
    chunk = [x[:, :, :9] for x in (query, key, value)]
    expected, _ = full_chunk(*chunk, **options)
    monkeypatch.setattr(full, "KEYS_AT_ONCE", 8)
    output, _ = full_chunk(*chunk, **options)
    np.testing.assert_allclose(output[0], expected[0], atol=1e-12)
    np.testing.assert_allclose(output[1, :, :2], expected[1, :, :2], atol=1e-12)


@pytest.mark.weekly
def test_dropout_and_gradients_over_blocks_of_keys(monkeypatch):
    monkeypatch.setattr(full, "KEYS_AT_ONCE", 8)
    query, key, value = grouped_inputs()

    def outputs(query, **options):
        cache = full_cache(key[:, :, :5], value[:, :, :5], max_length=LENGTH)
        return full_chunk(*(x[:, :, 5:] for x in (query, key, value)), cache, 5, **options)[0]

    gradients = []
    for function in (outputs, lambda x: full_attention(x, key, value, causal=True)[:, :, 5:]):
        with tf.GradientTape() as tape:
            tape.watch(query)
            total = tf.reduce_sum(function(query) ** 2)
        gradients.append(tape.gradient(total, query))
    np.testing.assert_allclose(*gradients, atol=1e-12)
    seeds = [tf.constant([1, n]) for n in (1, 1, 2)]
    first, again, other = (outputs(query, dropout=0.5, seed=seed).numpy() for seed in seeds)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
