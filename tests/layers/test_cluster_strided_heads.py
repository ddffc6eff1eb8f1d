import keras
import numpy as np
import pytest

from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import ClusterStridedHeads, MultiHeadAttention
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query, key, value = (
        checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    mask = checks.padding(2, 11)
    group = ClusterStridedHeads(2, 3, 4, max_relative_distance=2, dtype="float64")
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, key, use_causal_mask=causal, **options)
    expected = reference.cluster_strided(
        query,
        key,
        value,
        group.centroids.numpy(),
        window_size=4,
        causal=causal,
        relative_embeddings=group.relative_embeddings.numpy(),
        **options,
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.end_to_end
def test_the_callback_moves_centroids():
    inputs = keras.Input((9, 6))
    group = ClusterStridedHeads(2, 3, 4)
    model = keras.Model(inputs, MultiHeadAttention([group], 4)(inputs, inputs))
    model.compile("sgd", "mse", jit_compile=False)
    before = group.centroids.numpy()
    x = checks.random(2, 9, 6)
    callback = CentroidEMA(decay=0.5)
    history = model.fit(x, x, verbose=0, callbacks=[callback])
    assert group.updates.numpy() == 1
    assert np.all(np.any(group.centroids.numpy() != before, axis=(1, 2)))
    assert "routing_0_fullest" in history.history
    group(*(checks.random(2, 2, 9, 4, seed=seed) for seed in range(3)), training=True)
    assert np.sum(group.member_counts) == 2 * 2 * 2 * 9


def test_bad_arguments():
    with pytest.raises(ValueError, match="window_size must be a positive integer"):
        ClusterStridedHeads(2, 3, 0)
    with pytest.raises(ValueError, match="assignment"):
        ClusterStridedHeads(2, 3, 4, assignment="nearest")
