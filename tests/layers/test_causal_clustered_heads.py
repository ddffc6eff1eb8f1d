import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import CausalClusteredHeads, MultiHeadAttention
from tests.layers import checks
from tests.ops import reference


def test_equation():
    query, key, value = (
        checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    mask = checks.padding(2, 11)
    group = CausalClusteredHeads(2, 3, 4, dtype="float64")
    group.build(query.shape, value.shape)
    group.load_bias.assign(checks.random(2, 3, seed=4))
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, key, use_causal_mask=True, **options)
    routing = {"centroids": group.centroids.numpy(), "load_bias": group.load_bias.numpy()}
    expected = reference.causal_clustered(query, key, value, **routing, block_size=4, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [0, 5])
def test_decoding(count):
    x = checks.random(2, 11, 6)
    layer = MultiHeadAttention([CausalClusteredHeads(2, 3, 4)], 4)
    expected = layer(x, x, use_causal_mask=True)
    found = checks.decode(layer, x, count)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_decoding_in_lower_precision():
    x = checks.random(1, 11, 6)
    layer = MultiHeadAttention([CausalClusteredHeads(2, 3, 4)], 4, dtype="mixed_bfloat16")
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(
        *(tf.cast(y, "float32") for y in (checks.decode(layer, x, 3), expected)), atol=0.03
    )


def test_centroids_learn_only_from_queries():
    query, key = checks.random(1, 2, 9, 6), checks.random(1, 2, 9, 6, seed=1)
    group = CausalClusteredHeads(2, 3, 4)
    group.has_centroid_updates = True
    group(query, key, key, use_causal_mask=True, training=True)
    assert group.member_counts.shape == (1, 2, 3)
    np.testing.assert_array_equal(group.member_counts.numpy().sum(axis=(0, 2)), [9, 9])


def test_config():
    x = checks.random(1, 2, 9, 6)
    group = CausalClusteredHeads(2, 3, 4, commitment_weight=0.5, seed=1, name="heads")
    checks.config_makes_an_equal_layer(group, x, x, x, use_causal_mask=True)


def test_bad_arguments():
    with pytest.raises(ValueError, match="block_size must be an integer of at least 1"):
        CausalClusteredHeads(2, block_size=0)
    x = checks.random(1, 2, 9, 6)
    with pytest.raises(ValueError, match="CausalClusteredHeads need use_causal_mask=True"):
        CausalClusteredHeads(2)(x, x, x)
