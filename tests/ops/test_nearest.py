import functools

import numpy as np
import tensorflow as tf

from rt_keras.ops import nearest_attention
from rt_keras.ops.nearest.assign import Assignment
from rt_keras.ops.nearest.rings import nearest_cache, nearest_chunk
from tests.ops import checks, chunk_checks


def test_one_length_known_and_the_other_not():
    inputs = checks.tensors(checks.arrays(9, clusters=2))

    @tf.function(input_signature=[tf.TensorSpec([2, 2, None, 6], tf.float64)])
    def call(key):
        return nearest_attention(**{**inputs, "key": key}, window_size=4)

    expected = nearest_attention(**inputs, window_size=4)
    np.testing.assert_allclose(call(inputs["key"]), expected, rtol=0, atol=1e-12)


def chunk(query, key, value, cache, position, centroids, num_probes=1, **options):
    assignment = Assignment(centroids, num_probes)
    return nearest_chunk(query, key, value, cache, position, assignment, **options)


def empty_cache(inputs, window_size):
    """The cache before the first position."""
    tensors = checks.tensors(inputs)
    key = tensors["query" if tensors["key"] is None else "key"]
    return nearest_cache(
        key,
        tensors["value"],
        Assignment(tensors["centroids"]),
        0,
        window_size=window_size,
        keep_positions="relative_embeddings" in inputs,
    )


def test_members_stay_where_they_were_put_when_centroids_move():
    inputs = checks.arrays(12, shared=True, clusters=3, heads=1, batch=1)
    cache = empty_cache(inputs, 12)
    _, cache = chunk_checks.in_chunks(cache, chunk, inputs, [8])
    moved = {**inputs, "centroids": inputs["centroids"][:, ::-1].copy()}
    parts = [inputs[name][:, :, 8:] for name in ("query", "value")]
    _, after = chunk(parts[0], None, parts[1], cache, 8, tf.constant(moved["centroids"]))
    counts = cache["counts"].numpy()[0, 0]
    for cluster, count in enumerate(counts):
        kept, now = (x["key"].numpy()[0, 0, cluster, :count] for x in (cache, after))
        np.testing.assert_array_equal(kept, now)


def test_gradients_stay_in_the_chunk():
    inputs = checks.arrays(40, clusters=3, far=5)
    chunk_checks.gradients_stay_in_the_chunk(
        empty_cache(inputs, 6),
        chunk,
        functools.partial(nearest_attention, window_size=6, causal=True),
        inputs,
        22,
        num_probes=2,
    )
