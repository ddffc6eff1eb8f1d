import numpy as np
import pytest

from rt_keras.layers import LocalRoutingHeads, RoutingMemoryHeads
from tests.layers import checks
from tests.layers.test_routing_heads import statistics
from tests.ops import reference

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def vectors(length=13):
    return [checks.random(2, 2, length, 6, seed=seed, dtype="float64") for seed in range(3)]


def heads(**options):
    group = LocalRoutingHeads(2, 2, 3, 4, **{"dtype": "float64", **options})
    group.build((None, 2, None, 6), (None, 2, None, 6))
    group.load_bias.assign(checks.random(2, 3, seed=9))
    group.routed_scale.assign([0.5, 2.0])
    group.routed_bias.assign([1.0, -1.0])
    return group


def test_untrained_heads_find_repetitions():
    # The second half repeats the first, so each query has an equal earlier one. The position after
    # the earlier one has the largest weight.
    half = checks.random(1, 2, 16, 6, seed=1)
    query = np.concatenate([half, half], axis=2)
    identity = np.broadcast_to(np.eye(32, dtype="float32"), (1, 2, 32, 32))
    group = LocalRoutingHeads(2, 2, num_clusters=2, window_size=16)
    group.build(query.shape, identity.shape)
    group.routed_scale.assign([9.0, 9.0])
    weights = np.array(group(query, identity, 0 * query, use_causal_mask=True))
    for i in range(20, 32):
        assert np.all(weights[0, :, i].argmax(axis=-1) == i - 16 + 1)


@pytest.mark.parametrize("options", [{}, {"routed_key": "key"}, {"kernel_size": 1}], ids=str)
def test_statistics(options):
    query, key, value = (x.astype("float32") for x in vectors())
    mask = checks.padding(2, 13)
    group = heads(**options, dtype="float32", commitment_weight=0.3)
    group(query, value, key, query_mask=mask, key_mask=mask, training=True)
    if group.routed_kernel is not None:
        query = reference.convolved(query, group.routed_kernel.numpy(), mask)
    sources = [query, key] if group.routed_key == "key" else [query]
    expected = [statistics(x, group, mask) for x in sources]
    checks.close(group.member_sums, [sums for sums, _, _ in expected], 2e-6)
    np.testing.assert_array_equal(group.member_counts, [counts for _, counts, _ in expected])
    loss = 0.3 * sum(distance for _, _, distance in expected)
    np.testing.assert_allclose(group.losses, [loss], rtol=1e-5)


def test_an_untrained_kernel_is_close_to_the_identity():
    first, same = (LocalRoutingHeads(4, 2, 3, 4, kernel_size=4, seed=5) for _ in range(2))
    for group in (first, same):
        group.build((None, 4, None, 50))
    kernel = first.routed_kernel.numpy()
    np.testing.assert_array_equal(kernel[:, 0], np.ones([4, 50]))
    assert abs(kernel[:, 1:].mean()) < 0.02 and kernel[:, 1:].std() == pytest.approx(0.1, abs=0.02)
    np.testing.assert_array_equal(kernel, same.routed_kernel)


@pytest.mark.parametrize("share_qk", [False, True])
def test_left_padding_does_not_change_the_convolution(share_qk):
    # Blocks and padding have 2 positions, so the windows do not change.
    query, key, value = vectors(12)
    group = heads(kernel_size=4, share_qk=share_qk)
    group.routed_kernel.assign(checks.random(2, 4, 6, seed=8))
    key = None if share_qk else key
    mask = np.broadcast_to(np.arange(12) >= 2, (2, 12))
    masks = {"query_mask": mask, "key_mask": mask}
    padded = group(query, value, key, **masks, use_causal_mask=True)
    parts = [x if x is None else x[:, :, 2:] for x in (query, value, key)]
    alone = group(*parts, use_causal_mask=True)
    np.testing.assert_allclose(padded[:, :, 2:], alone, rtol=0, atol=1e-12)


def test_a_memory_of_all_members_equals_a_longer_window():
    x, mask = checks.random(2, 2, 24, 4), checks.padding(2, 24)
    options = {"query_mask": mask, "key_mask": mask, "use_causal_mask": True}
    # Members that leave the window, which is as long as a block, are already in the memory.
    remembering = RoutingMemoryHeads(2, 4, 2, 4, memory_length=24, memory_keys=24)
    longer = LocalRoutingHeads(2, 4, 2, 24)
    outputs = [group(x, x, x, **options) for group in (remembering, longer)]
    assert np.any(outputs[0] != outputs[1])
    for ours, theirs in zip(longer.weights, remembering.weights):
        ours.assign(theirs)
    np.testing.assert_allclose(longer(x, x, x, **options), outputs[0], rtol=0, atol=1e-5)
