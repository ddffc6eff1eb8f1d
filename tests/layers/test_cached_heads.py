import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    CausalClusteredHeads,
    FullHeads,
    GatedDeltaHeads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    RoutingHeads,
    RoutingMemoryHeads,
    StridedHeads,
)
from rt_keras.layers.head_group import copy_groups
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.mark.slow
def test_arrays_do_not_change():
    x = checks.random(2, 2, 12, 6)
    positions = {"max_relative_distance": 3, "relative_positions": "sinusoidal"}
    for group in (
        FullHeads(2),
        FullHeads(2, **positions),
        LocalHeads(2, 4),
        RoutingHeads(2, 3, 4),
        StridedHeads(2, 3),
        LocalRoutingHeads(2, 3, 3, 4),
        RoutingMemoryHeads(2, 3, 3, 4, 4),
        CausalClusteredHeads(2, 3, 4),
    ):
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
            np.testing.assert_array_equal(after, x, err_msg=type(group).__name__)


# Their caches are rings or lists of keys and values.
WITH_KEYS = FullHeads, LocalHeads, RoutingHeads, LocalRoutingHeads, StridedHeads
STARTS = np.array([3, 7, 12])
LENGTH = 18
GROUPS = {
    "bounded": [
        FullHeads(4, memory_length=5),
        LocalHeads(4, 4, max_relative_distance=3),
        RoutingHeads(4, 2, 4),
        LocalRoutingHeads(4, 4, 2, 4),
        GatedDeltaHeads(4, 4),
    ],
    "growing": [
        FullHeads(4, max_relative_distance=3),
        LocalHeads(4, 3, grid=(2, 3), max_relative_distance=3),
        StridedHeads(4, 3, max_relative_distance=3),
        CausalClusteredHeads(4, 2, 4),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_rows_at_different_positions_that_share_keys_and_wait(name):
    groups = copy_groups(GROUPS[name], "float64")
    attention = MultiHeadAttention(
        groups,
        key_dim=4,
        num_key_value_heads=2 * len(groups),
        rotary_embedding=keras_hub.layers.RotaryEmbedding(dtype="float64"),
        dtype="float64",
    )
    attention.build((None, None, 8), (None, None, 8))
    x = tf.constant(np.random.default_rng(0).normal(size=[3, LENGTH, 8]))
    expected = attention(x, x, use_causal_mask=True)
    caches = [
        attention.prefill(x[row : row + 1], int(start), LENGTH)[1]
        for row, start in enumerate(STARTS)
    ]
    cache = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *caches)
    for group, of_group in zip(groups, cache):
        # If queries are also keys, the cache has one ring per query head.
        heads = {x.shape[1] for x in tf.nest.flatten(of_group.get("local", of_group))}
        assert not isinstance(group, WITH_KEYS) or heads == {2}, type(group)

    @tf.function(autograph=False)
    def step(x, cache, position, count):
        # Traced once, which takes less time than the calls of single operations for each step.
        return attention.call_with_cache(x, cache, position, count=count)

    # In half of the rows, and in those that have ended, the count is 0.
    position, rng = STARTS.copy(), np.random.default_rng(1)
    while np.any(position < LENGTH):
        count = rng.integers(0, 2, 3) * (position < LENGTH)
        places = np.minimum(position, LENGTH - 1)
        one = tf.gather(x, places, batch_dims=1)[:, None]
        at = tf.constant(position, tf.int32), tf.constant(count, tf.int32)
        output, after = step(one, cache, *at)
        there = count > 0
        found, wanted = output[:, 0], tf.gather(expected, places, batch_dims=1)
        # The angles are float32.
        np.testing.assert_allclose(found[there], wanted[there], rtol=0, atol=1e-6)
        tf.nest.map_structure(
            lambda new, old, rest=~there: np.testing.assert_array_equal(new[rest], old[rest]),
            after,
            cache,
        )
        position, cache = position + count, after
