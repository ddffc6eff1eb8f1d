import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import hamming_groups
from rt_keras.ops.hamming import naive_hamming_groups
from tests.ops import checks


@pytest.mark.parametrize("padding", [None, "scattered"])
@pytest.mark.parametrize(
    "length, bits, clusters, iterations", [(30, 40, 6, 3), (9, 63, 1, 1), (200, 9, 2, 3)]
)
def test_equation(padding, length, bits, clusters, iterations):
    rng = np.random.default_rng(bits)
    x, projections = rng.normal(size=(2, 2, length, 6)), rng.normal(size=(2, bits, 6))
    mask = checks.mask(padding, length)
    given = {"num_clusters": clusters, "iterations": iterations, "mask": mask}
    found = hamming_groups(x, projections, **given)
    unknown = [tf.TensorSpec([None, 2, None, 6], tf.float64)]
    traced = tf.function(lambda x: hamming_groups(x, projections, **given), unknown, False)
    np.testing.assert_array_equal(traced(x), found)
    real = np.ones([2, length], bool) if mask is None else mask
    for b, h in np.ndindex(2, 2):
        expected = naive_hamming_groups(x[b, h], projections[h], **{**given, "mask": real[b]})
        np.testing.assert_array_equal(found[b, h], expected)


def test_a_row_of_padding_alone():
    x, projections = np.ones([1, 1, 5, 2]), np.ones([1, 3, 2])
    found = hamming_groups(x, projections, num_clusters=2, mask=np.zeros([1, 5], bool))
    assert found.shape == (1, 1, 5) and np.all((found.numpy() >= 0) & (found.numpy() < 2))


def spread(query, groups, clusters, mask):
    """The mean squared distance of queries to the mean of their group."""
    total = 0.0
    for b, h, c in np.ndindex(*query.shape[:2], clusters):
        members = query[b, h][(groups[b, h] == c) & mask[b]]
        total += ((members - members.mean(axis=0)) ** 2).sum() if len(members) else 0.0
    return total / (mask.sum() * query.shape[1])


@pytest.mark.parametrize("name", ["self_attention", "cross_attention", "padded"])
def test_groups_are_as_close_as_those_of_fast_transformers(name):
    case = checks.golden_clustered(name)
    query, clusters = case["q"].transpose(0, 2, 1, 3), int(case["clusters"])
    mask = np.arange(query.shape[2]) < case["query_lengths"][:, None]
    theirs = np.mean(
        [spread(query, case[f"{x}/groups"], clusters, mask) for x in ("clustered", "improved")]
    )
    found = []
    for seed in range(5):
        projections = np.random.default_rng(seed).normal(size=(query.shape[1], 63, 16))
        groups = hamming_groups(query, projections, num_clusters=clusters, mask=mask)
        found.append(spread(query, groups.numpy(), clusters, mask))
    assert np.mean(found) <= theirs, (np.mean(found), theirs)
