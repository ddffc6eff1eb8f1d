import functools

import numpy as np
import tensorflow as tf

from rt_keras.ops import nearest_attention
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step
from tests.ops import checks, decode_checks


def _make_cache(key, value, count, given, **options):
    return nearest_cache(
        key,
        value,
        given["centroids"],
        count,
        load_bias=given.get("load_bias"),
        keep_positions="relative_embeddings" in given,
        **options,
    )


def test_rows_at_positions_of_their_own():
    inputs = checks.arrays(16, clusters=3, far=4, load_bias=True)
    make = functools.partial(_make_cache, given=checks.tensors(inputs), window_size=3)
    decode_checks.rows_at_own_positions(
        make, nearest_step, nearest_attention, inputs, [3, 9], window_size=3
    )


def test_a_query_whose_cluster_has_no_keys_gets_0():
    inputs = checks.arrays(3, clusters=2, heads=1, batch=1)
    inputs["centroids"] = np.stack([np.eye(6)[:1], -np.eye(6)[:1]], axis=1)
    inputs["query"][:] = 5 * np.eye(6)[0]
    inputs["key"][:] = -5 * np.eye(6)[0]
    make = functools.partial(_make_cache, given=checks.tensors(inputs), window_size=2)
    found, _ = decode_checks.decode(make, nearest_step, inputs, 0)
    assert not found.any()
    assert decode_checks.decode(make, nearest_step, inputs, 0, num_probes=2)[0].all()


def test_the_cache_has_one_size():
    for length in (9, 100):
        x, centroids = tf.random.normal([2, 1, length, 4]), tf.random.normal([1, 3, 4])
        cache = nearest_cache(x, x, centroids, length, window_size=5)
        assert cache["key"].shape == (2, 1, 3, 5, 4)
    assert nearest_cache(x, x, centroids, 4, window_size=5, max_length=2)["key"].shape[3] == 2


def test_rows_of_the_cache_can_be_exchanged():
    inputs = checks.arrays(12, clusters=3, far=4)
    order = [1, 0, 1]
    make = functools.partial(_make_cache, given=checks.tensors(inputs), window_size=3)
    tensors = checks.tensors(inputs)
    query, key, value = (tensors.pop(name) for name in ("query", "key", "value"))
    cache = make(key[:, :, :8], value[:, :, :8], 8)
    cache = {name: tf.gather(x, order) for name, x in cache.items()}
    last = (tf.gather(x, order)[:, :, 8:9] for x in (query, key, value))
    found, _ = nearest_step(*last, cache, 8, **tensors)
    expected = nearest_attention(query, key, value, window_size=3, causal=True, **tensors)
    np.testing.assert_allclose(found[:, :, 0], tf.gather(expected, order)[:, :, 8], atol=1e-12)


def test_compiled_by_xla():
    inputs = checks.tensors(checks.arrays(20, clusters=3, far=4), tf.float32)
    tables = {name: inputs[name] for name in ("centroids", "relative_embeddings")}
    query, key, value = (inputs[name] for name in ("query", "key", "value"))

    @tf.function(jit_compile=True)
    def last_half(query, key, value):
        cache = nearest_cache(
            key, value, inputs["centroids"], 10, window_size=4, keep_positions=True
        )
        outputs = tf.zeros_like(value)

        def body(position, cache, outputs):
            one = (x[:, :, position, None] for x in (query, key, value))
            output, cache = nearest_step(*one, cache, position, num_probes=2, **tables)
            here = (tf.range(20) == position)[:, None]
            return position + 1, cache, tf.where(here, output, outputs)

        return tf.while_loop(lambda position, *_: position < 20, body, (10, cache, outputs))[2]

    found = last_half(query, key, value)[:, :, 10:]
    expected = nearest_attention(
        query, key, value, window_size=4, num_probes=2, causal=True, **tables
    )[:, :, 10:]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
