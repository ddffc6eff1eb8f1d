import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import full, full_attention
from rt_keras.ops.full import full_cache, full_chunk

LENGTH = 29


def draw(*shape):
    return tf.constant(np.random.default_rng(len(shape)).normal(size=shape))


def test_a_cache_without_room():
    x = tf.zeros([1, 1, 4, 2])
    cache = full_cache(x, x, max_length=6)
    with pytest.raises(ValueError, match="holds 6 positions, 0 to 5. Received: position=7"):
        full_chunk(x, x, x, cache, 4)


@pytest.mark.parametrize(
    "jit_compile, room, with_relative", [(False, 29, True), (True, 32, True), (False, 32, False)]
)
def test_blocks_of_keys_give_what_all_at_once_do(monkeypatch, jit_compile, room, with_relative):
    monkeypatch.setattr(full, "KEYS_AT_ONCE", 8)
    query, key, value = draw(2, 6, LENGTH, 4), draw(2, 3, LENGTH, 4), draw(2, 3, LENGTH, 5)
    options = {}
    if with_relative:
        options["relative_embeddings"] = draw(6, 7, 4)
    expected, sums = full_attention(
        query,
        tf.repeat(key, 2, axis=1),
        tf.repeat(value, 2, axis=1),
        causal=True,
        return_logsumexp=True,
        **options,
    )

    @tf.function(jit_compile=jit_compile)
    def read(position, cache, query, key, value):
        return full_chunk(query, key, value, cache, position, return_logsumexp=True, **options)

    start = 5
    cache = full_cache(key[:, :, :start], value[:, :, :start], max_length=room)
    for position in range(start, LENGTH, 8):
        part = slice(position, position + 8)
        found, cache = read(
            tf.constant(position), cache, *(x[:, :, part] for x in (query, key, value))
        )
        np.testing.assert_allclose(found[0], expected[:, :, part], atol=1e-12)
        np.testing.assert_allclose(found[1], sums[:, :, part], atol=1e-12)


def test_rows_at_positions_of_their_own_read_blocks_of_keys(monkeypatch):
    query, key, value = draw(2, 2, LENGTH, 4), draw(2, 2, LENGTH, 4), draw(2, 2, LENGTH, 5)
    caches = [full_cache(x[:, :, :20], x[:, :, :20], max_length=40) for x in (key, value)]
    cache = {"key": caches[0]["key"], "value": caches[1]["value"]}
    options = {"position": tf.constant([20, 3]), "count": tf.constant([9, 2])}
    expected, _ = full_chunk(query[:, :, :9], key[:, :, :9], value[:, :, :9], cache, **options)
    monkeypatch.setattr(full, "KEYS_AT_ONCE", 8)
    found, _ = full_chunk(query[:, :, :9], key[:, :, :9], value[:, :, :9], cache, **options)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-12)
    np.testing.assert_allclose(found[1, :, :2], expected[1, :, :2], atol=1e-12)


@pytest.mark.weekly
def test_dropout_and_gradients_over_blocks_of_keys(monkeypatch):
    monkeypatch.setattr(full, "KEYS_AT_ONCE", 8)
    query, key, value = draw(1, 2, LENGTH, 4), draw(1, 2, LENGTH, 4), draw(1, 2, LENGTH, 4)

    def outputs(query, **options):
        cache = full_cache(key[:, :, :5], value[:, :, :5], max_length=LENGTH)
        rest = (x[:, :, 5:] for x in (query, key, value))
        return full_chunk(*rest, cache, 5, **options)[0]

    def gradient(function):
        with tf.GradientTape() as tape:
            tape.watch(query)
            result = tf.reduce_sum(function(query) ** 2)
        return tape.gradient(result, query)

    whole = gradient(lambda x: full_attention(x, key, value, causal=True)[:, :, 5:])
    np.testing.assert_allclose(gradient(outputs), whole, atol=1e-12)
    seeds = [tf.constant([1, n]) for n in (1, 1, 2)]
    first, again, other = (outputs(query, dropout=0.5, seed=seed).numpy() for seed in seeds)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
