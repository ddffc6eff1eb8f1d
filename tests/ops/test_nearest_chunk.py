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


@pytest.mark.slow
@settings(max_examples=15, derandomize=True)
@given(
    length=st.integers(1, 24),
    clusters=st.integers(1, 5),
    window_size=st.integers(1, 9),
    shared=st.booleans(),
    far=st.none() | st.integers(1, 9),
    pull=st.sampled_from([0.0, 3.0, 100.0]),
    data=st.data(),
)
def test_a_prompt_chunks_and_steps_are_one_pass(
    length, clusters, window_size, shared, far, pull, data
):
    inputs = checks.arrays(length, shared=shared, clusters=clusters, far=far, load_bias=True)
    # From even clusters to one that has all.
    inputs["load_bias"][:, 0] += pull
    of_op = {"routed_key": "previous_query" if shared and data.draw(st.booleans()) else "key"}
    of_op["window_size"] = window_size
    places = {name: inputs[name] for name in ("centroids", "load_bias")}
    bounded = {"max_length": length if data.draw(st.booleans()) else None}

    def make_cache(key, value, count):
        kept = {**places, **bounded, **of_op, "keep_positions": far is not None}
        return nearest_cache(key, value, count=count, **kept)

    ends = data.draw(st.lists(st.integers(0, length), min_size=1, max_size=4).map(sorted))
    probes = data.draw(st.integers(1, clusters))
    chunk_checks.goes_on(
        make_cache,
        nearest_chunk,
        nearest_step,
        nearest_attention,
        inputs,
        sorted(set(ends)),
        of_op,
        num_probes=probes,
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


def test_gradients_stay_in_the_chunk():
    inputs = checks.arrays(40, clusters=3, far=5)
    chunk_checks.gradients_stay_in_the_chunk(
        empty_cache(inputs, 6),
        nearest_chunk,
        functools.partial(nearest_attention, window_size=6, causal=True),
        inputs,
        22,
        num_probes=2,
    )
