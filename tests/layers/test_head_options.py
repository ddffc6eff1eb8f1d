import pytest

from rt_keras.layers.head_options import positive_int
from tests.contract.kinds import layers, required


@pytest.mark.parametrize("value", [0, 2.0, "3", True])
def test_positive_int(value):
    assert positive_int("size", 3) == 3
    with pytest.raises(
        ValueError, match=f"size must be a positive integer. Received: size={value!r}"
    ):
        positive_int("size", value)


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("FullHeads", {"num_heads": 0}, "num_heads must be a.* integer.*. Received: num_heads=0"),
        ("FullHeads", {"memory_length": 0}, "memory_length must be a positive integer"),
        ("FullHeads", {"relative_positions": "rotary"}, "one of learned, .*'rotary'"),
        (
            "LocalHeads",
            {"max_relative_distance": 2, "grid": (2, 2), "relative_positions": "sinusoidal"},
            "cannot be combined with grid",
        ),
        ("FullHeads", {"max_relative_distance": 0}, "integer.*. Received: max_relative_distance=0"),
        ("LocalHeads", {"sliding_window": 6}, "from 1 to look_back · block_size . 1, 5. .*: 6"),
        ("LocalHeads", {"grid": (2, 0)}, r"positive integers. Received: grid=\(2, 0\)"),
        (
            "LocalHeads",
            {"look_back": (1,), "grid": (2, 2)},
            r"one for each dimension of grid. .* look_back=\(1,\), grid=\(2, 2\)",
        ),
        ("RoutingHeads", {"assignment": ["nearest"]}, r"one of .*Received: assignment=\['nearest"),
        ("StridedHeads", {"stride": 0}, "a positive integer. Received: stride=0"),
        ("LSHHeads", {"num_buckets": 5}, "num_buckets must be even. Received: num_buckets=5"),
        ("LSHHeads", {"num_rounds": 0}, "a positive integer. Received: num_rounds=0"),
        ("ClusteredHeads", {"top_k": 1.5}, "a positive integer. Received: top_k=1.5"),
        ("RoutingHeads", {"num_probes": 5}, "at most num_clusters .* num_probes=5, num_clusters=4"),
        ("RoutingHeads", {"num_probes": 2, "assignment": "balanced"}, "and 1 with 'balanced'"),
        ("LocalRoutingHeads", {"routed_key": "value"}, "one of .* Received: routed_key='value'"),
        (
            "LocalRoutingHeads",
            {"kernel_size": 4, "routed_key": "key"},
            "kernel_size must be 1 unless .*=4, .*'key'",
        ),
        ("RoutingMemoryHeads", {"memory_length": 3}, "at least memory_block_size. .*block_size=4"),
        ("RoutingMemoryHeads", {"eviction": "newest"}, "eviction must be one of .*'newest'"),
    ],
)
def test_bad_arguments(kind, options, message):
    with pytest.raises(ValueError, match=message):
        layers()[kind](**{**required(layers()[kind]), **options})
