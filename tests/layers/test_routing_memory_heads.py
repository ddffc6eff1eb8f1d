import numpy as np
import pytest

from rt_keras.layers import LocalRoutingHeads, MultiHeadAttention, RoutingMemoryHeads
from rt_keras.ops.routing_memory import EVICTIONS
from tests.layers import checks

SIZES = {"block_size": 4, "num_clusters": 2, "window_size": 3}


@pytest.mark.parametrize(
    "eviction",
    [EVICTIONS[0], *(pytest.param(x, marks=pytest.mark.end_to_end) for x in EVICTIONS[1:])],
)
def test_decoding_and_configuration(eviction):
    group = RoutingMemoryHeads(
        2,
        **SIZES,
        memory_length=5,
        memory_keys=2,
        eviction=eviction,
        num_probes=2,
        memory_block_size=5,
    )
    layer, x = MultiHeadAttention([group]), checks.random(2, 23, 8)
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 11), expected, rtol=0, atol=1e-5)
    heads = checks.random(1, 2, 23, 4)
    checks.config_makes_an_equal_layer(group, heads, heads, heads, use_causal_mask=True)


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


def test_every_weight_trains():
    group = RoutingMemoryHeads(2, **SIZES, memory_length=8, max_relative_distance=3)
    query, key, value = (checks.random(1, 2, 24, 4, seed=seed) for seed in range(3))
    checks.trains_every_weight(group, query, value, key, use_causal_mask=True, training=True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"memory_length": 3}, "memory_length must be at least memory_block_size. .*block_size=4"),
        ({"memory_keys": 0}, "memory_keys must be an integer of at least 1"),
        ({"eviction": "newest"}, "eviction must be one of .*'newest'"),
        ({"routed_key": "key"}, "routed_key must be 'previous_query'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RoutingMemoryHeads(2, **{**SIZES, "memory_length": 8, **arguments})


def test_causal_mask_is_required():
    x = checks.random(1, 1, 8, 2)
    with pytest.raises(ValueError, match="need use_causal_mask=True"):
        RoutingMemoryHeads(1, **SIZES, memory_length=8)(x, x, x)
