import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.rings import add_members, attend_to_rings, numbers_of_places
from tests.ops import checks

CLUSTERS, WINDOW = 3, 4


def empty_rings(batch=2, heads=2):
    """Rings whose members are numbers."""
    return {
        "key": tf.zeros([batch, heads, CLUSTERS, WINDOW]),
        "counts": tf.zeros([batch, heads, CLUSTERS], tf.int32),
        "other": tf.constant(7),
    }


@pytest.mark.parametrize("lengths", [[20], [3, 1, 16], [9, 11]], ids=str)
def test_rings_hold_the_last_members(lengths):
    rng = np.random.default_rng(0)
    rings, lists = empty_rings(), [[[[] for _ in range(CLUSTERS)] for _ in "ab"] for _ in "ab"]
    for length in lengths:
        # The highest number is no cluster.
        clusters = rng.integers(CLUSTERS + 1, size=[2, 2, 1, length], dtype=np.int32)
        members = rng.normal(size=[2, 2, length]).astype(np.float32)
        given = {"key": tf.constant(members)}
        rings = add_members(rings, given, tf.constant(clusters), CLUSTERS)
        for row, head, place in np.ndindex(2, 2, length):
            if clusters[row, head, 0, place] < CLUSTERS:
                lists[row][head][clusters[row, head, 0, place]].append(members[row, head, place])
    assert int(rings["other"]) == 7
    for row, head, cluster in np.ndindex(2, 2, CLUSTERS):
        expected = lists[row][head][cluster]
        assert int(rings["counts"][row, head, cluster]) == len(expected)
        kept = rings["key"][row, head, cluster].numpy()
        for number in range(max(0, len(expected) - WINDOW), len(expected)):
            assert kept[number % WINDOW] == expected[number]


def test_numbers_of_places():
    for count in range(10):
        found = numbers_of_places(tf.constant([count]), WINDOW).numpy()[0]
        for number in range(max(0, count - WINDOW), count):
            assert found[number % WINDOW] == number
        assert np.sum(found >= 0) == min(count, WINDOW)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_queries_see_as_many_members_as_their_chunk_leaves_room_for(count):
    inputs = checks.tensors(checks.arrays(6, batch=1, heads=1, value_depth=6))
    rng = np.random.default_rng(1)
    key, value = rng.normal(size=[2, 1, 1, count, 6])
    rings = {name: tf.zeros([1, 1, 1, WINDOW, 6], tf.float64) for name in ("key", "value")}
    rings["counts"] = tf.zeros([1, 1, 1], tf.int32)
    given = {"key": tf.constant(key), "value": tf.constant(value)}
    rings = add_members(rings, given, tf.zeros([1, 1, 1, count], tf.int32), 1)
    options = dict.fromkeys(("relative_embeddings", "seed", "bound"))
    options |= {"dropout": 0.0, "attention_activation": "softmax"}
    here = tf.zeros([1, 1, 1, 6], tf.int32)
    found, _ = attend_to_rings(inputs["query"], here, rings, here, options)
    for i, query in enumerate(inputs["query"].numpy()[0, 0]):
        # Of the last WINDOW members, i + 1 are in the chunk.
        first = max(0, count - max(0, WINDOW - i - 1))
        weights = np.exp(key[0, 0, first:] @ query)
        expected = weights @ value[0, 0, first:] / max(weights.sum(), 1e-30)
        np.testing.assert_allclose(found[0, 0, i], expected, rtol=0, atol=1e-12)
