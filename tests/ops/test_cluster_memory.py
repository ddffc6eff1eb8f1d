import numpy as np
import tensorflow as tf

from rt_keras.ops.cluster_memory import remember
from rt_keras.ops.routing_memory import empty_memory

BATCH, HEADS, CLUSTERS, DEPTH, LENGTH, BLOCK = 4, 2, 2, 3, 5, 4


def after(blocks, eviction):
    """The memory after blocks whose members have their own positions as keys."""
    rng = np.random.default_rng(0)
    sizes = {"memory_length": LENGTH, "block_size": BLOCK, "eviction": eviction}
    x = tf.zeros([BATCH, HEADS, 1, DEPTH], tf.float64)
    kept = empty_memory(x, x, CLUSTERS, **sizes)
    kept = {name: x for name, x in kept.items() if not name.startswith("new_")}
    for block in range(blocks):
        key = np.zeros([BATCH, HEADS, BLOCK, DEPTH]) + BLOCK * block + np.arange(BLOCK)[:, None]
        clusters = tf.constant(rng.integers(0, CLUSTERS, size=[BATCH, HEADS, BLOCK]), tf.int32)
        kept = remember(kept, tf.constant(key), tf.constant(key), clusters, eviction)
    return kept


def test_at_random_any_member_goes():
    kept = after(20, "random")
    age = kept["counts"][..., None] - kept["number"]
    # If the oldest were evicted, no member would be older than the memory is long.
    assert np.all(kept["number"] >= 0)
    assert np.mean(age > LENGTH) > 0.2
    for numbers in kept["number"].numpy().reshape(-1, LENGTH):
        assert len(set(numbers)) == len(numbers)
