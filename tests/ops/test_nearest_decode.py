import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import nearest_attention
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step
from tests.ops import checks, decode_checks


def decode(
    inputs, count, window_size, num_probes=1, max_length=None, routed_key="key", dtype=tf.float64
):
    make_cache = functools.partial(
        _make_cache,
        given=checks.tensors(inputs, dtype),
        window_size=window_size,
        max_length=max_length,
        routed_key=routed_key,
    )
    return decode_checks.decode(
        make_cache, nearest_step, inputs, count, dtype=dtype, num_probes=num_probes
    )


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


def holds(inputs, count, window_size, num_probes=1, max_length=None, routed_key="key", **tolerance):
    options = {"window_size": window_size, "num_probes": num_probes, "routed_key": routed_key}
    found = decode(inputs, count, max_length=max_length, **options)
    decode_checks.same(found, nearest_attention, inputs, count, **options, **tolerance)


@pytest.mark.end_to_end
@settings(max_examples=15)
@given(
    length=st.integers(1, 24),
    clusters=st.integers(1, 5),
    window_size=st.integers(1, 9),
    shared=st.booleans(),
    far=st.none() | st.integers(1, 9),
    bounded=st.booleans(),
    pull=st.sampled_from([0.0, 3.0, 100.0]),
    data=st.data(),
)
def test_steps(length, clusters, window_size, shared, far, bounded, pull, data):
    inputs = checks.arrays(length, shared=shared, clusters=clusters, far=far, load_bias=True)
    # From even clusters to one that has all.
    inputs["load_bias"][:, 0] += pull
    holds(
        inputs,
        data.draw(st.integers(0, length - 1)),
        window_size,
        data.draw(st.integers(1, clusters)),
        max_length=length if bounded else None,
        routed_key="previous_query" if shared and data.draw(st.booleans()) else "key",
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
    found, _ = decode(inputs, 0, window_size=2)
    assert not found.any()
    assert decode(inputs, 0, window_size=2, num_probes=2)[0].all()


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


@pytest.mark.parametrize("dtype, atol", [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_compiled_by_xla(dtype, atol):
    inputs = checks.tensors(checks.arrays(20, clusters=3, far=4), tf.as_dtype(dtype))
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
    assert found.dtype == dtype
    expected = nearest_attention(
        query, key, value, window_size=4, num_probes=2, causal=True, **tables
    )[:, :, 10:]
    np.testing.assert_allclose(
        tf.cast(found, "float32"), tf.cast(expected, "float32"), rtol=0, atol=atol
    )
