import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, Heads, LocalRoutingHeads, MultiHeadAttention
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
from rt_keras.ops.blocks import take_places
from tests.layers import checks

LENGTH, HEADS, DEPTH = 26, 2, 6
# Unions that are not a declared kind of heads.
UNIONS = {
    "window, stride and persistent keys": [Window(4), Strided(5), Persistent(3)],
    "sliding window and stride": [Window(4, look_back=2, sliding_window=6), Strided(3)],
    "window, cluster and stride": [Window(3), Strided(4), Cluster(3, window_size=4)],
    "window and first tokens": [Window(4), FirstTokens(3)],
    "window, stride and first tokens": [Window(3), Strided(5), FirstTokens(7)],
    "window, cluster and first tokens": [Window(3), Cluster(3, window_size=4), FirstTokens(2)],
    "window and blocks by content": [Window(4), SelectedBlocks(1, num_blocks=3, segment_size=4)],
    "window, first tokens, blocks of neighbors and persistent keys": [
        Window(8, look_back=0),
        FirstTokens(3),
        SelectedBlocks(2, num_blocks=2, segment_size=8, by_content=False),
        Persistent(2),
    ],
    "window and blocks of nodes": [
        Window(8),
        SelectedBlocks(1, num_blocks=3, segment_size=8, num_nodes=1),
    ],
    "window, first tokens and blocks of the last positions": [
        Window(4, look_back=0),
        FirstTokens(3),
        SelectedBlocks(2, num_blocks=2, segment_size=4, memory_length=8),
    ],
    "everything and persistent keys": [Everything(), Persistent(2)],
    "window, cluster of keys and persistent keys": [
        Window(3, max_relative_distance=4),
        Cluster(2, window_size=4, routed_key="key", scaled=False),
        Persistent(2),
    ],
    "window, cluster and memory": [
        Window(3),
        Cluster(2, window_size=2),
        Remembered(6, memory_keys=2),
        Persistent(2),
    ],
}


def make(name, **options):
    heads = Heads(HEADS, UNIONS[name], dtype="float64", **options)
    heads.build([2, HEADS, LENGTH, DEPTH], [2, HEADS, LENGTH, DEPTH])
    return heads


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.normal(size=[2, HEADS, LENGTH, DEPTH])) for _ in range(3)]


def in_window(window, i, j):
    if window.sliding_window is not None:
        return abs(i - j) < window.sliding_window
    return abs(i // window.block_size - j // window.block_size) <= window.look_back


@pytest.mark.parametrize("name", list(UNIONS)[:2])
@pytest.mark.parametrize("causal", [False, True])
def test_equation(name, causal):
    """Compares a union to one softmax over the keys of all sets, each counted once."""
    heads, (query, value, key) = make(name), inputs()
    window, stride, *_ = UNIONS[name]
    found = heads(query, value, key, use_causal_mask=causal)
    for b, h, i in np.ndindex(2, HEADS, LENGTH):
        seen = [
            j
            for j in range(LENGTH)
            if (in_window(window, i, j) or (i - j) % stride.stride == 0) and (j <= i or not causal)
        ]
        keys, values = key.numpy()[b, h, seen], value.numpy()[b, h, seen]
        if len(UNIONS[name]) == 3:
            keys = np.concatenate([keys, heads.persistent_keys.numpy()[h]])
            values = np.concatenate([values, heads.persistent_values.numpy()[h]])
        weights = np.exp(keys @ query.numpy()[b, h, i] / np.sqrt(DEPTH))
        expected = weights @ values / weights.sum()
        np.testing.assert_allclose(found[b, h, i], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_each_key_counts_once(causal):
    heads, (query, value, key) = make("window, stride and first tokens"), inputs()
    window, stride, first = heads.key_sets
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)
    near = abs(i // window.block_size - j // window.block_size) <= window.look_back
    seen = near | ((i - j) % stride.stride == 0) | (j < first.num_first_tokens)
    seen &= (j <= i) | (not causal)
    logits = np.where(seen, query @ tf.linalg.matrix_transpose(key) / np.sqrt(DEPTH), -np.inf)
    weights = np.exp(logits)
    expected = weights / weights.sum(-1, keepdims=True) @ value
    found = heads(query, value, key, use_causal_mask=causal)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_a_window_and_a_cluster_are_local_routing_heads():
    query, value, key = inputs()
    both = Heads(HEADS, [Window(4), Cluster(3, window_size=4, seed=1)], dtype="float64")
    kind = LocalRoutingHeads(HEADS, 4, 3, 4, seed=1, dtype="float64")
    outputs = [heads(query, value, key, use_causal_mask=True) for heads in (both, kind)]
    np.testing.assert_array_equal(*outputs)
    assert [x.shape for x in both.weights] == [x.shape for x in kind.weights]


@pytest.mark.parametrize("name", UNIONS)
def test_decoding_equals_one_pass(name):
    heads, given = make(name), inputs()
    expected = heads(*given, use_causal_mask=True)
    cache = heads.make_cache(*given, count=9, max_length=LENGTH)
    for start, end in ((9, 10), (10, 17), (17, 18), (18, LENGTH)):
        chunk = [x[:, :, start:end] for x in given]
        output, cache = heads.call_with_cache(*chunk, cache, start)
        np.testing.assert_allclose(output, expected[:, :, start:end], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", UNIONS)
def test_rows_at_different_positions(name):
    heads, given = make(name), inputs()
    expected = heads(*given, use_causal_mask=True)
    starts = np.array([7, 12], np.int32)
    caches = [heads.make_cache(*given, count=int(n), max_length=LENGTH) for n in starts]
    cache = tf.nest.map_structure(lambda a, b: tf.concat([a[:1], b[1:]], axis=0), *caches)
    for step in range(5):
        rows = [take_places(x, (starts + step)[:, None]) for x in given]
        output, cache = heads.call_with_cache(*rows, cache, tf.constant(starts + step))
        for row, place in enumerate(starts + step):
            np.testing.assert_allclose(
                output[row, :, 0], expected[row, :, place], rtol=0, atol=1e-9
            )


@pytest.mark.parametrize("name", UNIONS)
def test_later_positions_do_not_change_outputs(name):
    heads, first, second = make(name), inputs(0), inputs(1)
    joined = [tf.concat([a[:, :, :11], b[:, :, 11:]], axis=2) for a, b in zip(first, second)]
    outputs = [heads(*x, use_causal_mask=True)[:, :, :11] for x in (first, joined)]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", UNIONS)
def test_padding(name):
    heads, given = make(name), inputs()
    mask = np.arange(LENGTH) < np.array([[LENGTH], [15]])
    masks = {"query_mask": mask, "key_mask": mask, "use_causal_mask": True}
    moved = [tf.where(mask[:, None, :, None], x, 9.0) for x in given]
    outputs = [heads(*x, **masks) for x in (given, moved)]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-12)
    assert not np.any(outputs[0][1, :, 15:])


@pytest.mark.parametrize("name", UNIONS)
def test_a_model_is_saved_and_loaded(name, tmp_path):
    tokens = keras.Input([LENGTH, 8])
    layer = MultiHeadAttention([Heads(2, UNIONS[name])], key_dim=4)
    model = keras.Model(tokens, layer(tokens, tokens, use_causal_mask=True))
    x = checks.random(2, LENGTH, 8)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    assert loaded.layers[-1].head_groups[0].key_sets == tuple(UNIONS[name])


# Unions that XLA compiles in the fast tests too, not only end to end.
BY_XLA = ("window, stride and persistent keys", "window, cluster and memory")


@pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")
@pytest.mark.parametrize(
    "name, by_xla",
    [
        *((name, name in BY_XLA) for name in UNIONS),
        *(
            pytest.param(name, True, marks=pytest.mark.end_to_end)
            for name in UNIONS
            if name not in BY_XLA
        ),
    ],
)
def test_training(name, by_xla):
    tokens = keras.Input([LENGTH, 8])
    layer = MultiHeadAttention([Heads(2, UNIONS[name])], key_dim=4, dropout=0.1)
    model = keras.Model(tokens, layer(tokens, tokens, use_causal_mask=True))
    compiled = {"jit_compile": True} if by_xla else {"run_eagerly": True}
    model.compile("sgd", "mse", **compiled)
    x = checks.random(2, LENGTH, 8)
    history = model.fit(x, np.roll(x, 1, axis=1), epochs=2, verbose=0)
    assert np.all(np.isfinite(history.history["loss"]))


@pytest.mark.parametrize(
    "key_sets, message",
    [
        ([], "key_sets must be a list of at least one set of keys"),
        ([FullHeads(2)], "key_sets must be a list of at least one set of keys"),
        ([Window(4), Window(8)], "key_sets must be of different classes"),
        ([Persistent(2)], "Persistent keys need another set of keys"),
        ([Window(4), BlockAndCentroids(3, 4)], "BlockAndCentroids.* cannot be joined with other"),
        ([Window(4, attention_activation="entmax15"), Strided(3)], "cannot be joined with other"),
        ([Window(4, grid=(2, 2)), Strided(3)], "must have no grid and no key_block_size"),
        (
            [Window(4, sliding_window=3), Cluster(3, window_size=4, routed_key="key")],
            "sliding_window must be None with a Cluster of routed_key='key'",
        ),
        ([FirstTokens(2)], "FirstTokens needs another set of keys.* Received: none"),
        ([Everything(), FirstTokens(2)], "must not be Everything. Received: Everything"),
        ([Window(4), Remembered(8)], "Remembered needs a Cluster"),
        ([SelectedBlocks(8, num_blocks=2)], "needs a Window without .* and no Window"),
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
        ({"block_size": 3}, "Received: segment_size=256, block_size=3"),
        ({"block_size": 512}, "Received: segment_size=256, block_size=512"),
        ({"block_size": 0}, "block_size must be an integer of at least 1"),
        ({"block_size": True}, "block_size must be an integer of at least 1"),
        ({"block_size": 2.0}, "block_size must be an integer of at least 1"),
        ({"segment_size": 0}, "segment_size must be an integer of at least 1"),
        ({"segment_size": 12}, "segment_size must be block_size times a power of 2"),
        ({"segment_size": 20}, "segment_size must be block_size times a power of 2"),
        ({"num_blocks": 0}, "num_blocks must be an integer of at least 1. Received: num_blocks=0"),
        ({"num_nodes": 0}, "num_nodes must be"),
        ({"segment_size": 16, "num_nodes": 2}, "num_nodes needs segments of at least 8 blocks"),
        ({"num_nodes": 1, "num_blocks": 9}, "num_nodes times 8 must be at least num_blocks"),
        ({"deviation_weight": -1.0}, "deviation_weight must be"),
        ({"memory_length": 0}, "memory_length must be an integer of at least 1, or None"),
        ({"memory_length": 256.0}, "memory_length must be an integer of at least 1, or None"),
        ({"memory_length": 384}, "multiple of segment_size. Received: memory_length=384, seg"),
        ({"memory_length": 128}, "multiple of segment_size. Received: memory_length=128, seg"),
    ],
)
def test_bad_blocks(options, message):
    with pytest.raises(ValueError, match=message):
        SelectedBlocks(**{"block_size": 4, "num_blocks": 2, **options})


def test_blocks_of_the_last_positions_are_causal():
    heads = make("window, first tokens and blocks of the last positions")
    message = "SelectedBlocks with memory_length=8 need use_causal_mask=True"
    with pytest.raises(ValueError, match=message):
        heads(*inputs())


def test_budgets_above_the_text_are_all_keys():
    """More blocks and nodes than there are, and a memory that is longer than the text."""
    query, value, key = inputs()
    blocks = SelectedBlocks(1, 800, segment_size=8, num_nodes=100, memory_length=800)
    sets = {"blocks": [Window(8), FirstTokens(30), blocks], "all": [Everything()]}
    outputs = [
        Heads(HEADS, key_sets, dtype="float64")(query, value, key, use_causal_mask=True)
        for key_sets in sets.values()
    ]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-12)
    sets["blocks"] = [Window(8), blocks]
    found = Heads(HEADS, sets["blocks"], dtype="float64")(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, outputs[1], rtol=0, atol=1e-12)


def test_only_one_set_has_relative_positions():
    heads = Heads(2, [Window(4, max_relative_distance=2), Strided(3, max_relative_distance=2)])
    with pytest.raises(ValueError, match="max_relative_distance must be None in all sets"):
        heads.build([1, 2, 8, 4], [1, 2, 8, 4])


def test_a_union_has_the_abilities_of_all_its_sets():
    bounded = Heads(2, [Window(4), Cluster(3, window_size=4), Persistent(2)])
    growing = Heads(2, [Window(4), Strided(4)])
    assert bounded.can_be_stateful and not bounded.cache_grows
    assert growing.cached_decoding and growing.cache_grows and not growing.can_be_stateful
    assert Heads(2, [Window(4), FirstTokens(2)]).can_be_stateful
    blocks = SelectedBlocks(1, num_blocks=2, segment_size=4)
    recent = dataclasses.replace(blocks, memory_length=8)
    assert Heads(2, [Window(4), blocks]).cache_grows and not blocks.needs_causal_mask
    assert Heads(2, [Window(4), recent]).can_be_stateful and recent.needs_causal_mask
    assert not bounded.takes_global_tokens and growing.takes_global_tokens
