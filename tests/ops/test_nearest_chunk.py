import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import nearest_attention
from rt_keras.ops.nearest_chunk import nearest_chunk
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step
from tests.ops import checks, chunk_checks


def empty_cache(inputs, window_size, **options):
    """The cache before the first position."""
    tensors = checks.tensors(inputs)
    key = tensors["query" if tensors["key"] is None else "key"]
    return nearest_cache(
        key,
        tensors["value"],
        tensors["centroids"],
        0,
        window_size=window_size,
        keep_positions="relative_embeddings" in inputs,
        **options,
    )


@settings(max_examples=8)
@given(
    ends=st.lists(st.integers(1, 24), min_size=1, max_size=4, unique=True).map(sorted),
    clusters=st.integers(1, 5),
    window_size=st.integers(1, 9),
    shared=st.booleans(),
    far=st.none() | st.integers(1, 9),
    pull=st.sampled_from([0.0, 3.0, 100.0]),
    data=st.data(),
)
def test_chunks_are_one_pass(ends, clusters, window_size, shared, far, pull, data):
    inputs = checks.arrays(ends[-1], shared=shared, clusters=clusters, far=far, load_bias=True)
    # From even clusters to one that has all.
    inputs["load_bias"][:, 0] += pull
    routed_key = "previous_query" if shared and data.draw(st.booleans()) else "key"
    options = {"num_probes": data.draw(st.integers(1, clusters))}
    cache = empty_cache(inputs, window_size, routed_key=routed_key)
    found, _ = chunk_checks.in_chunks(cache, nearest_chunk, inputs, ends, **options)
    expected = nearest_attention(
        **checks.tensors(inputs),
        window_size=window_size,
        causal=True,
        routed_key=routed_key,
        **options,
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("routed_key", ["key", "previous_query"])
def test_steps_go_on_from_a_chunk(routed_key):
    inputs = checks.arrays(30, shared=True, clusters=4, far=5)
    cache = empty_cache(inputs, 6, routed_key=routed_key)
    start = {name: x for name, x in inputs.items()}
    _, cache = chunk_checks.in_chunks(cache, nearest_chunk, start, [11, 23])
    given = checks.tensors(inputs)
    query, value = (given.pop(name) for name in ("query", "value"))
    given.pop("key")
    outputs = []
    for at in range(23, 30):
        one = slice(at, at + 1)
        output, cache = nearest_step(query[:, :, one], None, value[:, :, one], cache, at, **given)
        outputs.append(output)
    expected = nearest_attention(
        **checks.tensors(inputs), window_size=6, causal=True, routed_key=routed_key
    )
    np.testing.assert_allclose(
        np.concatenate(outputs, axis=2), expected[:, :, 23:], rtol=0, atol=1e-12
    )


def test_members_stay_where_they_were_put_when_centroids_move():
    inputs = checks.arrays(12, shared=True, clusters=3, heads=1, batch=1)
    cache = empty_cache(inputs, 12)
    _, cache = chunk_checks.in_chunks(cache, nearest_chunk, inputs, [8])
    moved = {**inputs, "centroids": inputs["centroids"][:, ::-1].copy()}
    parts = [inputs[name][:, :, 8:] for name in ("query", "value")]
    _, after = nearest_chunk(parts[0], None, parts[1], cache, 8, tf.constant(moved["centroids"]))
    counts = cache["counts"].numpy()[0, 0]
    for cluster, count in enumerate(counts):
        kept, now = (x["key"].numpy()[0, 0, cluster, :count] for x in (cache, after))
        np.testing.assert_array_equal(kept, now)


@pytest.mark.end_to_end
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_compiled_by_xla(dtype, atol):
    inputs = checks.tensors(checks.arrays(20, clusters=3, far=4), tf.as_dtype(dtype))
    query, key, value = (inputs.pop(name) for name in ("query", "key", "value"))

    @tf.function(jit_compile=True)
    def last_half(query, key, value, position):
        cache = nearest_cache(
            key, value, inputs["centroids"], 10, window_size=4, keep_positions=True
        )
        parts = (x[:, :, 10:] for x in (query, key, value))
        return nearest_chunk(*parts, cache, position, **inputs)[0]

    found = last_half(query, key, value, tf.constant(10))
    assert found.dtype == dtype
    expected = nearest_attention(query, key, value, window_size=4, causal=True, **inputs)
    np.testing.assert_allclose(
        tf.cast(found, "float32"), tf.cast(expected[:, :, 10:], "float32"), rtol=0, atol=atol
    )


@pytest.mark.parametrize("far", [None, 5])
def test_gradients_stay_in_the_chunk(far):
    inputs = checks.arrays(40, clusters=3, far=far)
    chunk_checks.gradients_stay_in_the_chunk(
        empty_cache(inputs, 6),
        nearest_chunk,
        functools.partial(nearest_attention, window_size=6, causal=True),
        inputs,
        22,
        num_probes=2,
    )
