from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import block_selection, native_sparse, native_sparse_attention
from rt_keras.ops.native_sparse_chunk import native_sparse_cache, native_sparse_chunk
from tests.ops import checks, reference

SIZES = {"block_size": 4, "num_blocks": 4, "window_size": 5}


def arrays(length, batch=2, seed=0, heads=2, key_heads=2):
    """Random inputs by name."""
    inputs = checks.arrays(length, batch=batch, seed=seed, heads=heads)
    for name in ("key", "value"):
        inputs[name] = inputs[name][:, :key_heads]
    rng = np.random.default_rng(seed + 10)
    return {**inputs, "gates": rng.uniform(size=(batch, heads, length, 3))}


def agrees_with_the_loop(inputs, **options):
    """Checks outputs to 1e-10, and gradients along directions to 1e-8.

    The loop is an analytic function where the selection is constant, so a small imaginary step
    gives its exact derivative.
    """
    options = {**SIZES, **options}
    output, gradients = checks.run(native_sparse_attention, inputs, options)
    expected = reference.native_sparse(**inputs, **options)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-10)
    rng, cotangent = np.random.default_rng(2), np.random.default_rng(1).normal(size=output.shape)
    assert gradients.keys() == inputs.keys()
    for name, gradient in gradients.items():
        direction = rng.normal(size=inputs[name].shape)
        moved = {**inputs, name: inputs[name] + 1e-30j * direction}
        slope = np.sum(reference.native_sparse(**moved, **options) * cotangent).imag / 1e-30
        assert np.sum(gradient * direction) == pytest.approx(slope, abs=1e-8), name


@pytest.mark.parametrize(
    "length, sizes",
    [
        (29, {}),
        (28, {"block_size": 2, "num_blocks": 5}),
        (13, {"num_blocks": 1}),
        (13, {"num_blocks": 2, "window_size": 1}),
        (12, {"block_size": 1, "num_blocks": 3}),
        (9, {"num_blocks": 30, "window_size": 30}),
        (3, {"block_size": 8}),
        (1, {}),
    ],
    ids=str,
)
def test_equation(length, sizes):
    agrees_with_the_loop(arrays(length), **sizes)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_heads_of_one_key_head_select_together(key_heads):
    inputs = arrays(27, heads=4, key_heads=key_heads)
    agrees_with_the_loop(inputs, block_size=3)
    # A head alone would select other blocks.
    alone = {
        name: x if x.shape[1] == 4 else np.repeat(x, 4 // key_heads, axis=1)
        for name, x in inputs.items()
    }
    together, apart = (
        native_sparse_attention(**x, **{**SIZES, "block_size": 3}) for x in (inputs, alone)
    )
    assert np.max(np.abs(together - apart)) > 0.01


@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(padding):
    mask = checks.mask(padding, 19)
    inputs = arrays(19, heads=4)
    agrees_with_the_loop(inputs, block_size=3, query_mask=mask, key_mask=mask)


def test_the_content_of_padding_does_not_matter():
    mask, inputs = checks.mask("right", 19), arrays(19)
    options = {**SIZES, "query_mask": mask, "key_mask": mask}
    expected = native_sparse_attention(**inputs, **options)
    moved = {name: np.where(mask[:, None, :, None], x, np.nan) for name, x in inputs.items()}
    np.testing.assert_array_equal(native_sparse_attention(**moved, **options), expected)


def test_of_equal_blocks_the_first_are_selected():
    inputs = arrays(40)
    inputs["key"][:] = inputs["key"][:, :, :1]
    # Means of equal vectors may differ in their last bits; of powers of two they do not.
    inputs["key"] = np.sign(inputs["key"])
    agrees_with_the_loop(inputs)
    gates = np.broadcast_to([0.0, 1.0, 0.0], [2, 2, 40, 3])
    values = np.broadcast_to(np.eye(40), [2, 2, 40, 40])
    seen = native_sparse_attention(**{**inputs, "gates": gates, "value": values}, **SIZES)[0, 0]
    # The first block, the second, and the two last ones.
    assert np.flatnonzero(seen[38]).tolist() == [*range(8), *range(32, 39)]


def test_blocks_that_are_always_selected():
    def blocks(num_blocks):
        gates = np.broadcast_to([0.0, 1.0, 0.0], [2, 2, 26, 3])
        inputs = {**arrays(26), "gates": gates}
        sizes = {**SIZES, "num_blocks": num_blocks}
        seen = checks.attention_of(native_sparse_attention, inputs, sizes)[0, 0, 25]
        return {place // 4 for place in np.flatnonzero(seen)}

    assert [blocks(number) for number in (1, 2, 3)] == [{6}, {0, 6}, {0, 5, 6}]
    assert blocks(4) > {0, 5, 6} and len(blocks(4)) == 4


def test_the_plain_version_of_the_authors_of_flash_linear_attention():
    # `naive_nsa_compression`, `naive_nsa_topk` and `naive_nsa_selection` of flash-linear-attention
    # at commit bc3b101 gave the branches; the window is PyTorch's attention with a mask.
    with np.load(Path(__file__).parents[1] / "golden" / "native_sparse.npz") as file:
        given = dict(file)
    sizes = {name: int(given.pop(name)) for name in SIZES}
    expected = {name: given.pop(name) for name in ("compressed", "selected", "window", "output")}
    for number, name in enumerate(("compressed", "selected", "window")):
        gates = np.broadcast_to(np.eye(3, dtype=np.float32)[number], given["gates"].shape)
        found = native_sparse_attention(**{**given, "gates": gates}, **sizes)
        np.testing.assert_allclose(found, expected[name], rtol=0, atol=2e-6, err_msg=name)
    found = native_sparse_attention(**given, **sizes)
    np.testing.assert_allclose(found, expected["output"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("start", [1, 7, 8, 12, 21])
def test_the_past_does_not_depend_on_the_future(start):
    inputs, others = arrays(23), arrays(23, seed=9)
    joined = {
        name: np.concatenate([x[:, :, :start], others[name][:, :, start:]], axis=2)
        for name, x in inputs.items()
    }
    found, expected = (
        native_sparse_attention(**x, **SIZES)[:, :, :start] for x in (joined, inputs)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def in_chunks(inputs, ends, max_length, sizes):
    """The outputs of chunks that end at given positions."""
    outputs = []
    first = {name: inputs[name][:, :, : ends[0]] for name in ("key", "value")}
    cache = native_sparse_cache(**first, max_length=max_length, block_size=sizes["block_size"])
    for start, end in zip(ends, ends[1:]):
        chunk = {name: x[:, :, start:end] for name, x in inputs.items()}
        output, cache = native_sparse_chunk(**chunk, cache=cache, position=start, **sizes)
        outputs.append(output)
    return tf.concat(outputs, axis=2)


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("window_size", [1, 5, 50])
@pytest.mark.parametrize(
    "ends", [[0, 26], [9, *range(10, 27)], [0, 1, 2, 12, 26], [4, 8, 21, 26], [23, 26]], ids=str
)
def test_chunks_and_steps_are_one_pass(ends, window_size, key_heads):
    inputs = checks.tensors(arrays(26, heads=4, key_heads=key_heads))
    sizes = {**SIZES, "window_size": window_size}
    expected = native_sparse_attention(**inputs, **sizes)[:, :, ends[0] :]
    found = in_chunks(inputs, ends, 30, sizes)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_steps_select_the_same_of_equal_blocks_in_float32():
    rng, inputs = np.random.default_rng(0), arrays(81, heads=4)
    # Three kinds of blocks, whose values differ.
    kinds = rng.normal(size=(3, 4, 6))[rng.integers(0, 3, 21)]
    inputs["key"] = np.broadcast_to(kinds.reshape(84, 6)[:81], [2, 2, 81, 6])
    inputs = checks.tensors(inputs, tf.float32)
    expected = native_sparse_attention(**inputs, **SIZES)[:, :, 40:]
    found = in_chunks(inputs, range(40, 82), 81, SIZES)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 6])
def test_padding_of_a_chunk_does_not_change_the_cache(length):
    inputs, counts = checks.tensors(arrays(11 + length)), tf.constant([0, length])
    first = {name: inputs[name][:, :, :11] for name in ("key", "value")}
    cache = native_sparse_cache(**first, max_length=20, block_size=4)
    chunk = {name: x[:, :, 11:] for name, x in inputs.items()}
    _, after = native_sparse_chunk(
        **chunk, cache=cache, position=tf.constant([11, 11]), count=counts, **SIZES
    )
    for name, x in cache.items():
        np.testing.assert_array_equal(after[name][0], x[0])
        assert after[name].shape == x.shape and np.any(after[name][1] != x[1])


@pytest.mark.parametrize("key_heads", [pytest.param(1, marks=pytest.mark.end_to_end), 4])
def test_in_chunks_of_queries(key_heads, monkeypatch):
    inputs = arrays(26, heads=4, key_heads=key_heads)
    options = {**SIZES, "key_mask": checks.mask("scattered", 26)}
    expected = checks.run(native_sparse_attention, inputs, options)
    for name in ("SCORED_AT_ONCE", "GATHERED_AT_ONCE"):
        assert getattr(native_sparse, name) == getattr(block_selection, name)
        monkeypatch.setattr(native_sparse, name, 1000)
    found = checks.run(native_sparse_attention, inputs, options, jit_compile=True)
    checks.same(found, expected, atol=1e-12)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("padding", [None, "left", "scattered"])
def test_in_tiles(padding):
    inputs, masks = arrays(27, heads=4), {}
    if padding:
        mask = checks.mask(padding, 27)
        masks = {"query_mask": mask, "key_mask": mask}
    agrees_with_the_loop(inputs, **masks)
    checks.holds_compiled(native_sparse_attention, inputs, **SIZES, **masks)


@pytest.mark.parametrize("length", [0, 1, 19])
def test_compiled(length):
    checks.holds_compiled(native_sparse_attention, arrays(length, heads=4), **SIZES)
    mask = checks.mask("scattered", length)
    masks = {"query_mask": mask, "key_mask": mask}
    checks.holds_compiled(native_sparse_attention, arrays(length), **SIZES, **masks)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    # All blocks are selected, so that rounding errors select no others.
    sizes = {**SIZES, "num_blocks": 6}
    inputs = arrays(23, heads=4)
    equation = reference.native_sparse
    checks.holds_in_lower_precision(native_sparse_attention, equation, inputs, dtype, atol, **sizes)


@pytest.mark.usefixtures("tiles")
def test_tiles_in_lower_precision():
    test_lower_precision(tf.bfloat16, 0.06)


@pytest.mark.usefixtures("tiles")
def test_dropout_in_tiles():
    test_dropout_applies_to_all_branches()


def test_dropout_applies_to_all_branches():
    inputs = {**arrays(15), "gates": np.ones([2, 2, 15, 3])}
    options = {**SIZES, "dropout": 0.5}
    outputs = []
    for branch in range(3):
        inputs["gates"] = np.broadcast_to(np.eye(3)[branch], [2, 2, 15, 3])
        first, again, other = (
            native_sparse_attention(**checks.tensors(inputs), **options, seed=seed)
            for seed in ([1, 2], [1, 2], [3, 4])
        )
        np.testing.assert_array_equal(first, again)
        assert np.any(first != other)
        outputs.append(first)
    inputs["gates"] = np.ones([2, 2, 15, 3])
    found = native_sparse_attention(**checks.tensors(inputs), **options, seed=[1, 2])
    np.testing.assert_allclose(found, sum(outputs), rtol=0, atol=1e-12)


def test_unknown_shapes():
    def inputs(length):
        found = arrays(length, batch=1 + length % 3)
        return {**found, "key_mask": checks.mask("scattered", length, 1 + length % 3)}

    lengths = (8, 0, 5, 21)
    checks.holds_for_unknown_shapes(native_sparse_attention, lengths, inputs, **SIZES)


def test_no_tensor_has_all_pairs_of_positions():
    length = 2048
    inputs = {name: x[:1, :1] for name, x in arrays(length).items()}
    sizes = {"block_size": 32, "num_blocks": 4, "window_size": 32}
    largest = checks.largest_tensor(native_sparse_attention, inputs, **sizes)
    # The logits of 4 blocks of 32 keys per query, and of one tile of 64 queries per block.
    assert largest <= (4 * length + length // 32 * 64) * 32 < length**2 / 8


@pytest.mark.parametrize("name", SIZES)
def test_bad_sizes(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1. Received: {name}=0"):
        native_sparse_attention(**arrays(5), **{**SIZES, name: 0})


def test_bad_shapes():
    with pytest.raises(ValueError, match="must divide.*2 key heads for 3 heads"):
        native_sparse_attention(**arrays(5, heads=3), **SIZES)
    inputs = arrays(5)
    inputs |= {name: arrays(7)[name] for name in ("key", "value")}
    with pytest.raises(ValueError, match="as many keys as queries.*length 5, key of length 7"):
        native_sparse_attention(**inputs, **SIZES)
    cache = native_sparse_cache(inputs["key"], inputs["value"], max_length=8, block_size=4)
    with pytest.raises(ValueError, match="The cache holds 8 positions"):
        native_sparse_chunk(**arrays(5), cache=cache, position=7, **SIZES)
