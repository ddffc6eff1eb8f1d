import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import CausalClusteredHeads, RoutingHeads
from rt_keras.ops.naive import naive_normalize
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.fixture
def float64_losses():
    """Sets the dtype of Keras losses to float64."""
    floatx = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(floatx)


def vectors(batch=2, length=11, dtype="float64"):
    return [checks.random(batch, 2, length, 6, seed=seed, dtype=dtype) for seed in range(3)]


def heads(**options):
    group = RoutingHeads(2, 3, 4, **{"dtype": "float64", **options})
    group.build((None, 2, None, 6), (None, 2, None, 6))
    group.centroids.load_bias.assign(checks.random(2, 3, seed=9))
    return group


def statistics(x, group, mask):
    """Computes sums, counts and mean squared distance of members in a loop."""
    x = naive_normalize(x)
    centroids, load_bias = group.centroids.centroids.numpy(), group.centroids.load_bias.numpy()
    sums, counts, distances = np.zeros(centroids.shape), np.zeros(load_bias.shape), []
    for b, h, i in np.ndindex(x.shape[:3]):
        if mask is None or mask[b, i]:
            c = np.argmax(centroids[h] @ x[b, h, i] + load_bias[h])
            sums[h, c] += x[b, h, i]
            counts[h, c] += 1
            distances.append(np.sum((x[b, h, i] - centroids[h, c]) ** 2))
    return sums, counts, np.mean(distances)


@pytest.mark.parametrize("assignment", ["nearest", "balanced"])
def test_statistics_and_commitment_loss(assignment, float64_losses):
    query, key, value = vectors()
    query_mask, key_mask = checks.padding(2, 11), checks.padding(2, 11, "left")
    group = heads(assignment=assignment, commitment_weight=0.3)
    masks = {"query_mask": query_mask, "key_mask": key_mask}
    group(query, value, key, **masks, training=True)
    of_queries, of_keys = statistics(query, group, query_mask), statistics(key, group, key_mask)
    np.testing.assert_allclose(group.centroids.member_sums, [of_queries[0], of_keys[0]], atol=1e-12)
    np.testing.assert_array_equal(group.centroids.member_counts, [of_queries[1], of_keys[1]])
    assert group.centroids.member_batches.numpy() == 1
    (loss,) = group.losses
    np.testing.assert_allclose(loss, 0.3 * (of_queries[2] + of_keys[2]), rtol=1e-12)

    # The statistics of a second batch are added.
    group(value, value, query, **masks, training=True)
    second = statistics(value, group, query_mask), statistics(query, group, key_mask)
    expected = [of_queries[1] + second[0][1], of_keys[1] + second[1][1]]
    np.testing.assert_array_equal(group.centroids.member_counts, expected)
    expected = [of_queries[0] + second[0][0], of_keys[0] + second[1][0]]
    np.testing.assert_allclose(group.centroids.member_sums, expected, atol=1e-12)
    assert group.centroids.member_batches.numpy() == 2


def test_statistics_of_shared_queries_and_keys(float64_losses):
    query, _, value = vectors()
    query_mask, key_mask = checks.padding(2, 11), checks.padding(2, 11, "left")
    group = heads(share_qk=True, commitment_weight=0.3)
    group(query, value, query_mask=query_mask, key_mask=key_mask, training=True)
    sums, counts, distance = statistics(query, group, query_mask & key_mask)
    np.testing.assert_allclose(group.centroids.member_sums, [sums], atol=1e-12)
    np.testing.assert_array_equal(group.centroids.member_counts, [counts])
    np.testing.assert_allclose(group.losses[0], 0.3 * distance, rtol=1e-12)


def test_no_statistics_without_training_and_only_a_loss_if_frozen():
    query, key, value = vectors()
    group = heads()
    before = group.get_weights()
    group(query, value, key)
    group(query, value, key, training=False)
    assert not group.losses
    group.trainable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group(query, value, key, training=True)
    for weight, old in zip(group.get_weights(), before):
        np.testing.assert_array_equal(weight, old)
    assert group.losses[0] > 0


def test_samples_with_fewer_positions_than_clusters():
    x = checks.random(1, 2, 2, 6)
    group = RoutingHeads(2, 5, 4)
    group(x, x, x, training=True)
    assert np.all(np.any(group.centroids.member_samples, axis=-1))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "float64"])
def test_state_is_float32_unless_the_policy_is_float64(dtype):
    group = heads(dtype=dtype)
    expected = "float64" if dtype == "float64" else "float32"
    for weight in group.non_trainable_variables:
        if "seed_generator" not in weight.path:
            assert weight.dtype == expected, weight.path
    x = tf.cast(checks.random(2, 2, 300, 6), group.compute_dtype)
    output = group(x, x, x, training=True)
    assert output.dtype == group.compute_dtype
    assert group.losses[0].dtype == keras.config.floatx()
    # bfloat16 cannot represent 600 exactly.
    assert np.sum(group.centroids.member_counts) == 2 * 2 * 2 * 300


def test_centroids_are_initialized_with_normalized_noise():
    first, same, other = (heads(seed=seed).centroids.centroids.numpy() for seed in (1, 1, 2))
    np.testing.assert_allclose(np.linalg.norm(first, axis=-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(first, same)
    assert np.all(first != other)


def test_training_without_the_callback_warns_once():
    query, key, value = vectors()
    group = heads(name="these_heads")
    group(query, value, key)
    with pytest.warns(
        UserWarning, match="these_heads.*nothing updates its centroids.*CentroidEMA.*loop"
    ):
        group(query, value, key, training=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group(query, value, key, training=True)
        moved = heads()
        moved.centroids.has_updates = True
        moved(query, value, key, training=True)


def test_causal_clustered_heads_count_the_members_of_queries_alone():
    group = CausalClusteredHeads(2, 3, 4)
    group.centroids.has_updates = True
    group(*vectors(length=9, dtype="float32"), use_causal_mask=True, training=True)
    np.testing.assert_array_equal(np.sum(group.centroids.member_counts, axis=2), [[2 * 9] * 2])
