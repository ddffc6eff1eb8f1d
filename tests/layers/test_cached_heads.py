import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    CausalClusteredHeads,
    CompressiveHeads,
    FullHeads,
    GatedDeltaHeads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    NativeSparseHeads,
    RoutingHeads,
    RoutingMemoryHeads,
    StridedHeads,
)
from rt_keras.ops.routing_memory import EVICTIONS
from rt_keras.t2t import T2TLocalHeads, T2TStridedHeads
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.mark.parametrize(
    "make",
    [
        lambda: FullHeads(2),
        lambda: FullHeads(2, max_relative_distance=3, relative_positions="sinusoidal"),
        lambda: LocalHeads(2, 4),
        lambda: RoutingHeads(2, 3, 4),
        lambda: StridedHeads(2, 3),
        lambda: LocalRoutingHeads(2, 3, 3, 4),
        lambda: RoutingMemoryHeads(2, 3, 3, 4, 4),
        lambda: CausalClusteredHeads(2, 3, 4),
        lambda: T2TLocalHeads(2, 4),
        lambda: T2TStridedHeads(2, 3),
    ],
)
def test_arrays_do_not_change(make):
    group, x = make(), checks.random(2, 2, 12, 6)
    group.build(x.shape, x.shape)
    if getattr(group, "relative_positions", None) == "sinusoidal":
        group.content_bias.assign(checks.random(2, 6))
    given = [x.copy() for _ in range(3)]
    group.make_cache(*given, 12, 12)
    cache = group.new_cache(2, 12, 6, 6)
    for start, end in ((0, 5), (5, 6)):
        parts = [y[:, :, start:end] for y in given]
        _, cache = group.call_with_cache(*parts, cache, start)
    for after in given:
        np.testing.assert_array_equal(after, x)


STARTS = np.array([3, 7, 12])
LENGTH = 18
GROUPS = {
    "relative": lambda: LocalHeads(4, 4, max_relative_distance=3, dtype="float64"),
    "sliding": lambda: LocalHeads(4, 4, sliding_window=3, dtype="float64"),
    "span": lambda: LocalHeads(4, 4, adaptive_span=True, dtype="float64"),
    "persistent": lambda: LocalHeads(4, 4, num_persistent_keys=2, dtype="float64"),
    "dense": lambda: LocalHeads(4, 4, dense_below=30, dtype="float64"),
    "full": lambda: FullHeads(4, max_relative_distance=3, dtype="float64"),
    "memory": lambda: FullHeads(4, memory_length=5, dtype="float64"),
    "routing": lambda: RoutingHeads(4, 2, 4, dtype="float64"),
    "local routing": lambda: LocalRoutingHeads(4, 4, 2, 4, dtype="float64"),
    "keys": lambda: LocalRoutingHeads(4, 4, 2, 4, routed_key="key", dtype="float64"),
    "compressive": lambda: CompressiveHeads(4, 4, 4, dtype="float64"),
    "gated delta": lambda: GatedDeltaHeads(4, 4, dtype="float64"),
    "native sparse": lambda: NativeSparseHeads(4, 2, 4, 3, dtype="float64"),
    "grid": lambda: LocalHeads(4, 3, grid=(2, 3), max_relative_distance=3, dtype="float64"),
    "strided": lambda: StridedHeads(4, 3, max_relative_distance=3, dtype="float64"),
    "causal clustered": lambda: CausalClusteredHeads(4, 2, 4, dtype="float64"),
    "t2t local": lambda: T2TLocalHeads(4, 3, grid=(2, 3), dtype="float64"),
    "t2t strided": lambda: T2TStridedHeads(4, 3, max_relative_distance=3, dtype="float64"),
    **{
        eviction: lambda eviction=eviction: RoutingMemoryHeads(
            4, 4, 2, 2, 6, 3, eviction=eviction, dtype="float64"
        )
        for eviction in EVICTIONS
    },
}


def what_is_held(cache):
    """Returns a cache with zeros for the unused places of a memory."""
    (cache,) = cache
    if "memory" in cache:
        there = cache["memory"]["number"] >= 0
        held = {
            name: x * tf.cast(there[..., None] if x.shape.rank > 4 else there, x.dtype)
            for name, x in cache["memory"].items()
            if name in ("key", "value", "used", "asked")
        }
        cache = {**cache, "memory": {**cache["memory"], **held}}
    return cache


# Kinds whose steps differ from those of another one only in what is forgotten.
OTHER_MEMORIES = ("merged", "random", "oldest")
# `tests/contract` also compares steps of each kind without shared key heads.
WITHOUT_SHARED_KEYS = ("relative", "routing", "compressive")


@pytest.mark.parametrize(
    "name, key_heads",
    [
        *(
            pytest.param(name, 2, marks=[pytest.mark.end_to_end] if name in OTHER_MEMORIES else [])
            for name in GROUPS
        ),
        *((name, None) for name in WITHOUT_SHARED_KEYS),
        *(
            pytest.param(name, None, marks=pytest.mark.end_to_end)
            for name in GROUPS
            if name not in WITHOUT_SHARED_KEYS
        ),
    ],
)
def test_steps_of_rows_at_different_positions(name, key_heads):
    attention = MultiHeadAttention(
        [GROUPS[name]()], key_dim=4, num_key_value_heads=key_heads, dtype="float64"
    )
    attention.build((None, None, 8), (None, None, 8))
    for weight in attention.weights:
        if weight.name == "span_share":
            weight.assign(np.full(weight.shape, 0.5))
    x = tf.constant(np.random.default_rng(0).normal(size=[3, LENGTH, 8]))
    expected = attention(x, x, use_causal_mask=True)
    caches = [
        attention.prefill(x[row : row + 1], int(start), LENGTH)[1]
        for row, start in enumerate(STARTS)
    ]
    cache = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *caches)

    @tf.function(autograph=False)
    def step(x, cache, position, count=None):
        # Traced once, which takes less time than the calls of single operations for each step.
        return attention.call_with_cache(
            x, cache, position, **({} if count is None else {"count": count})
        )

    # In half of the rows, and in those that have ended, the count is 0.
    position, rng = STARTS.copy(), np.random.default_rng(1)
    while np.any(position < LENGTH):
        count = rng.integers(0, 2, 3) * (position < LENGTH)
        given = {"count": tf.constant(count, tf.int32)}
        if np.all(position < LENGTH) and rng.integers(2):
            count, given = np.ones(3, int), {}
        places = np.minimum(position, LENGTH - 1)
        one = tf.gather(x, places, batch_dims=1)[:, None]
        output, after = step(one, cache, tf.constant(position, tf.int32), **given)
        there = count > 0
        found, wanted = output[:, 0], tf.gather(expected, places, batch_dims=1)
        np.testing.assert_allclose(found[there], wanted[there], rtol=0, atol=1e-12)
        tf.nest.map_structure(
            lambda new, old, rest=~there: np.testing.assert_array_equal(new[rest], old[rest]),
            *map(what_is_held, (after, cache)),
        )
        position, cache = position + count, after
