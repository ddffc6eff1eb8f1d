import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import selected_blocks_attention
from rt_keras.ops.content_blocks import attend as selected_blocks
from rt_keras.ops.content_blocks import select as block_selection
from rt_keras.ops.content_blocks import tiles as block_tiles
from rt_keras.ops.content_blocks.order import content_order
from tests.ops import checks
from tests.ops.cases import with_two_key_heads

LENGTH = 45
CONTENT = {"block_size": 2, "num_blocks": 3, "segment_size": 8, "window": (8, 1)}
CASES = {
    "content": CONTENT,
    "nodes": {**CONTENT, "block_size": 1, "num_blocks": 5, "num_nodes": 2, "deviation_weight": 1.0},
    "neighbours and first tokens": {
        **CONTENT,
        "by_content": False,
        "deviation_weight": 0.0,
        "num_first_tokens": 3,
        "window": (16, 0),
    },
    "first tokens in nodes": {**CONTENT, "block_size": 1, "num_nodes": 1, "num_first_tokens": 3},
    "more nodes than there are": {**CONTENT, "block_size": 1, "num_blocks": 50, "num_nodes": 9},
}

# Causal alone: blocks of the last positions before the window.
RECENT = {
    "memory": {**CONTENT, "memory_length": 8},
    "memory of neighbours": {**CONTENT, "memory_length": 16, "by_content": False},
    "memory of nodes": {
        **CONTENT,
        "block_size": 1,
        "num_blocks": 2,
        "num_nodes": 1,
        "num_first_tokens": 3,
        "memory_length": 16,
    },
    "memory and large windows": {**CONTENT, "window": (16, 0), "memory_length": 8},
}


@pytest.fixture
def tiles(monkeypatch):
    """Reads small blocks in small tiles too."""
    monkeypatch.setattr(block_tiles, "LEAST_BLOCK_SIZE", 1)
    monkeypatch.setattr(block_tiles, "TILE_SIZE", 4)
    monkeypatch.setattr(block_tiles, "MOST_ROWS", 100)


def attention(**arguments):
    return selected_blocks_attention(**arguments)[0]


def test_keys_that_are_all_equal_keep_their_order():
    order = content_order(tf.ones([8, 3]), tf.fill([8], True), 2)
    np.testing.assert_array_equal(order, np.arange(8))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["content", "first tokens in nodes", "memory"])
@pytest.mark.usefixtures("tiles")
def test_tiles_compiled_by_xla(case):
    inputs, mask = with_two_key_heads(checks.arrays(20, heads=4)), checks.mask("scattered", 20)
    options = {**CASES, **RECENT}[case] | {"query_mask": mask, "key_mask": mask}
    checks.holds_compiled(attention, inputs, **options, causal=True)


def test_a_memory_is_causal():
    inputs = checks.tensors(checks.arrays(LENGTH))
    with pytest.raises(ValueError, match="requires causal=True. Received: memory_length=8"):
        attention(**inputs, **CONTENT, memory_length=8)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["content", "nodes"])
def test_a_loop_over_positions_bounds_memory_in_the_gradient_too(case, monkeypatch):
    inputs, options = checks.arrays(LENGTH), {**CASES[case], "causal": True}
    whole = checks.run(attention, inputs, options)
    for module in (selected_blocks, block_selection):
        monkeypatch.setattr(module, "GATHERED_AT_ONCE", 4000)
    monkeypatch.setattr(block_selection, "SCORED_AT_ONCE", 500)
    monkeypatch.setattr(block_selection, "COMPARED_AT_ONCE", 500)
    checks.same(checks.run(attention, inputs, options, jit_compile=True), whole, atol=1e-12)
    # Outside XLA, a function that XLA compiles reads many keys.
    monkeypatch.setattr(selected_blocks, "MOST_MASKED_KEYS", 0)
    checks.same(checks.run(attention, inputs, options), whole, atol=1e-12)


def test_accelerators_take_more_positions_at_a_time(monkeypatch):
    inputs = checks.tensors(checks.arrays(LENGTH))
    expected = attention(**inputs, **CONTENT, causal=True)
    for module in (selected_blocks, block_selection):
        monkeypatch.setattr(module, "GATHERED_AT_ONCE", 1)
    monkeypatch.setattr(block_selection, "ON_ACCELERATORS", 4000)
    monkeypatch.setattr(block_selection, "has_accelerator", lambda: True)
    monkeypatch.setattr(selected_blocks, "runs_on_cpu_kernels", lambda: False)
    positions = []

    def attend(query, *arguments, **options):
        positions.append(query.shape[2])
        return attend_keys(query, *arguments, **options)

    attend_keys = selected_blocks.attend
    monkeypatch.setattr(selected_blocks, "attend", attend)
    found = attention(**inputs, **CONTENT, causal=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert positions and 1 < min(positions) < LENGTH


def test_gradients_of_tiles_are_summed_in_float32():
    """In bfloat16, a sum of ones would stop at 256."""
    rows = tf.ones([2, 1], tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        found = block_tiles.gather_summed(rows, tf.ones([2, 300], tf.int32))
    gradient = tape.gradient(found, rows)
    assert gradient.dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(gradient, tf.float32), [[0], [600]])


@pytest.mark.usefixtures("tiles")
def test_all_ways_have_the_same_logsumexp(monkeypatch):
    inputs = checks.tensors(checks.arrays(LENGTH))
    masked = selected_blocks_attention(**inputs, **CONTENT, causal=True)
    monkeypatch.setattr(selected_blocks, "runs_on_cpu_kernels", lambda: False)
    in_tiles = selected_blocks_attention(**inputs, **CONTENT, causal=True)
    monkeypatch.setattr(block_tiles, "LEAST_BLOCK_SIZE", LENGTH)
    gathered = selected_blocks_attention(**inputs, **CONTENT, causal=True)
    for x, *others in zip(gathered, masked, in_tiles, strict=True):
        for y in others:
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)
