import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.rings import add_members

CLUSTERS, WINDOW = 3, 4


def empty_rings():
    """Rings whose members are numbers."""
    return {
        "key": tf.zeros([2, 2, CLUSTERS, WINDOW]),
        "counts": tf.zeros([2, 2, CLUSTERS], tf.int32),
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
