import numpy as np
import pytest

from rt_keras.layers import LocalRoutingHeads
from rt_keras.ops.convolution import naive_convolution
from tests.layers import checks
from tests.layers.test_routing_heads import statistics, vectors

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def heads(**options):
    group = LocalRoutingHeads(2, 2, 3, 4, **{"dtype": "float64", **options})
    group.build((None, 2, None, 6), (None, 2, None, 6))
    group.centroids.load_bias.assign(checks.random(2, 3, seed=9))
    _, cluster = group.key_sets
    cluster.routed_scale.assign([0.5, 2.0])
    cluster.routed_bias.assign([1.0, -1.0])
    return group


@pytest.mark.parametrize("options", [{}, {"routed_key": "key"}, {"kernel_size": 1}], ids=str)
def test_statistics(options):
    query, key, value = vectors(length=13, dtype="float32")
    mask = checks.padding(2, 13)
    group = heads(**options, dtype="float32", commitment_weight=0.3)
    group(query, value, key, query_mask=mask, key_mask=mask, training=True)
    _, cluster = group.key_sets
    if cluster.routed_kernel is not None:
        query = naive_convolution(query, cluster.routed_kernel.numpy(), mask)
    sources = [query, key] if cluster.routed_key == "key" else [query]
    expected = [statistics(x, group, mask) for x in sources]
    checks.close(group.centroids.member_sums, [sums for sums, _, _ in expected], 2e-6)
    counts = [counts for _, counts, _ in expected]
    np.testing.assert_array_equal(group.centroids.member_counts, counts)
    loss = 0.3 * sum(distance for _, _, distance in expected)
    np.testing.assert_allclose(group.losses, [loss], rtol=1e-5)


def test_an_untrained_kernel_is_close_to_the_identity():
    first, same = (LocalRoutingHeads(4, 2, 3, 4, kernel_size=4, seed=5) for _ in range(2))
    for group in (first, same):
        group.build((None, 4, None, 50))
    kernel = first.key_sets[1].routed_kernel.numpy()
    np.testing.assert_array_equal(kernel[:, 0], np.ones([4, 50]))
    assert abs(kernel[:, 1:].mean()) < 0.02 and kernel[:, 1:].std() == pytest.approx(0.1, abs=0.02)
    np.testing.assert_array_equal(kernel, same.key_sets[1].routed_kernel)
