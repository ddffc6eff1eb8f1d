import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import Heads
from rt_keras.layers.key_sets import (
    BlockAndCentroids,
    Cluster,
    Everything,
    FirstTokens,
    Persistent,
    Remembered,
    SelectedBlocks,
    Strided,
    Window,
)
from rt_keras.ops.full import naive_full_attention

LENGTH, HEADS, DEPTH = 26, 2, 6


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.normal(size=[2, HEADS, LENGTH, DEPTH])) for _ in range(3)]


def in_window(window, i, j):
    if window.sliding_window is not None:
        return abs(i - j) < window.sliding_window
    return abs(i // window.block_size - j // window.block_size) <= window.look_back


@pytest.mark.parametrize(
    "sets, causal",
    [
        ([Window(4), Strided(5), Persistent(3)], True),
        ([Window(4, look_back=2, sliding_window=6), Strided(3)], False),
        ([Window(3), Strided(5), FirstTokens(7)], False),
        ([Window(3), Strided(5), FirstTokens(7)], True),
    ],
    ids=str,
)
def test_equation(sets, causal):
    """Compares a union to one softmax over the keys of all sets, each counted once."""
    heads, (query, value, key) = Heads(HEADS, sets, dtype="float64"), map(np.asarray, inputs())
    found = heads(query, value, key, use_causal_mask=causal)
    window, stride, other = *sets[:2], sets[-1]
    i, j = np.indices([LENGTH, LENGTH])
    seen = in_window(window, i, j) | ((i - j) % stride.stride == 0)
    seen |= j < getattr(other, "num_first_tokens", 0)
    seen &= (j <= i) | (not causal)
    if isinstance(other, Persistent):
        learned = other.persistent_keys.numpy(), other.persistent_values.numpy()
        key, value = (np.concatenate([x, [y, y]], 2) for x, y in zip((key, value), learned))
        seen = np.pad(seen, [[0, 0], [0, 3]], constant_values=True)
    expected = naive_full_attention(query, key, value, attention_mask=np.array([seen, seen]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "key_sets, message",
    [
        ([], "key_sets must be a list of at least one set of keys"),
        ([Window(4), Window(8)], r"of different classes. Received: key_sets=\[Window"),
        ([Persistent(2)], "Persistent keys need another set of keys"),
        ([Window(4), BlockAndCentroids(3, 4)], "BlockAndCentroids.* cannot be joined with other"),
        ([Window(4, grid=(2, 2)), Strided(3)], "must have no grid and no key_block_size"),
        (
            [Window(4, sliding_window=3), Cluster(3, window_size=4, routed_key="key")],
            "sliding_window must be None with a Cluster of routed_key='key'",
        ),
        ([Everything(), FirstTokens(2)], "must not be Everything. Received: Everything"),
        ([Window(4), Remembered(8)], "Remembered needs a Cluster"),
        ([Window(64), SelectedBlocks(8, num_blocks=2)], "segment_size=256 and Window"),
        (
            [Window(256, sliding_window=9), SelectedBlocks(8, num_blocks=2)],
            "without sliding_window",
        ),
        (
            [Window(256), Strided(4), SelectedBlocks(8, num_blocks=2)],
            "combined with Window, FirstTokens and Persistent. Received: Strided",
        ),
    ],
)
def test_bad_unions(key_sets, message):
    with pytest.raises(ValueError, match=message):
        Heads(2, key_sets)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"block_size": 512}, "Received: segment_size=256, block_size=512"),
        ({"segment_size": 12}, "segment_size must be block_size times a power of 2"),
        ({"segment_size": 16, "num_nodes": 2}, "num_nodes needs segments of at least 8 blocks"),
        ({"num_nodes": 1, "num_blocks": 9}, "num_nodes times 8 must be at least num_blocks"),
        ({"memory_length": 0}, "memory_length must be a positive integer"),
        ({"memory_length": 384}, "multiple of segment_size. Received: memory_length=384, seg"),
    ],
)
def test_bad_blocks(options, message):
    with pytest.raises(ValueError, match=message):
        SelectedBlocks(**{"block_size": 4, "num_blocks": 2, **options})


def test_budgets_above_the_text_are_all_keys():
    """More blocks and nodes than there are, and a memory that is longer than the text."""
    query, value, key = inputs()

    def blocks():
        return SelectedBlocks(1, 800, segment_size=8, num_nodes=100, memory_length=800)

    few, all_keys, none = (
        Heads(HEADS, key_sets, dtype="float64")(query, value, key, use_causal_mask=True)
        for key_sets in (
            [Window(8), FirstTokens(30), blocks()],
            [Everything()],
            [Window(8), blocks()],
        )
    )
    np.testing.assert_allclose(few, all_keys, rtol=0, atol=1e-12)
    np.testing.assert_allclose(none, all_keys, rtol=0, atol=1e-12)


def test_every_set_may_have_relative_positions():
    heads = Heads(2, [Window(4, max_relative_distance=2), Strided(3, max_relative_distance=2)])
    x = tf.ones([1, 2, 8, 4])
    assert heads(x, x, x).shape == x.shape
    assert [len(key_set.weights) for key_set in heads.key_sets] == [1, 1]


def test_a_set_belongs_to_one_union():
    window, x = Window(4), tf.ones([1, 2, 8, 4])
    Heads(2, [window])(x, x, x)
    with pytest.raises(ValueError, match="is part of other heads. Give each head group its own"):
        Heads(2, [window])(x, x, x)
