import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops.ranks import RUN_SIZE, inverse_permutation, rank_in_clusters

CLUSTERS = 5


def ranks_of_loop(clusters, others, inclusive):
    ranks = np.zeros(clusters.shape, int)
    for b, h, p, i in np.ndindex(*clusters.shape):
        other, own = others[b, h, p if others.shape[2] > 1 else 0], clusters[b, h, p, i]
        before = other[: i + 1 if inclusive else i]
        ranks[b, h, p, i] = np.sum(other < own) + np.sum(before == own)
    return ranks


def starts_of_loop(others):
    return np.array([np.sum(others < c, axis=-1) for c in range(CLUSTERS + 1)]).transpose(
        1, 2, 3, 0
    )


@st.composite
def lists(draw):
    lengths = [1, RUN_SIZE - 1, RUN_SIZE, RUN_SIZE + 1, RUN_SIZE**2 + 5]
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    probes, of_others = draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
    length = draw(st.sampled_from(lengths))
    used = draw(st.integers(1, CLUSTERS))
    return (
        rng.integers(0, CLUSTERS, (2, 1, probes, length)),
        rng.integers(0, used, (2, 1, of_others, length)),
        draw(st.booleans()),
    )


@settings(max_examples=25)
@given(lists())
def test_ranks_and_starts(case):
    clusters, others, inclusive = case
    ranks, starts = rank_in_clusters(
        tf.constant(clusters, tf.int32), tf.constant(others, tf.int32), CLUSTERS, inclusive
    )
    np.testing.assert_array_equal(ranks, ranks_of_loop(clusters, others, inclusive))
    np.testing.assert_array_equal(starts, starts_of_loop(others))


def test_unknown_lengths_and_places_of_a_stable_sort():
    clusters = tf.random.stateless_uniform([1, 2, 1, 1500], [0, 1], 0, CLUSTERS, tf.int32)
    spec = tf.TensorSpec([None] * 4, tf.int32)
    function = tf.function(lambda x: rank_in_clusters(x, x, CLUSTERS), input_signature=[spec])
    order = inverse_permutation(function(clusters)[0][:, :, 0])
    np.testing.assert_array_equal(order, np.argsort(clusters[:, :, 0], axis=-1, kind="stable"))
