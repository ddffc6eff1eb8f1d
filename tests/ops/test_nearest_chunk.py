import functools

import numpy as np
import tensorflow as tf

from rt_keras.ops import nearest_attention
from rt_keras.ops.nearest_chunk import nearest_chunk
from rt_keras.ops.nearest_decode import nearest_cache
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
