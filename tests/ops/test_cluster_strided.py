import numpy as np

from rt_keras.ops import cluster_strided_attention
from tests.ops import checks


def test_members_lie_at_even_steps_from_the_nearest_on():
    # Scores of one centroid, from the highest to the lowest: those of positions 9, 8, ..., 0.
    angles = np.linspace(np.pi, 0, 10)
    query = np.stack([np.cos(angles), -np.cos(angles), np.sin(angles), -np.sin(angles)], axis=-1)
    inputs = {"query": query[None, None], "key": None, "value": np.zeros((1, 1, 10, 1))}
    inputs["centroids"] = np.array([[[1.0, -1.0, 0.0, 0.0]]])
    attention = checks.attention_of(cluster_strided_attention, inputs, {"window_size": 3})[0, 0]
    assert np.flatnonzero(attention.any(axis=0)).tolist() == [3, 6, 9]
    assert np.flatnonzero(attention.any(axis=1)).tolist() == [3, 6, 9]
