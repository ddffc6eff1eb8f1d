import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import native_sparse_attention
from rt_keras.ops.native_sparse_chunk import native_sparse_cache, native_sparse_chunk
from tests.ops import checks, reference
from tests.ops.cases import native_arrays

SIZES = {"block_size": 4, "num_blocks": 4, "window_size": 5}


def arrays(length, key_heads=2, **options):
    """Random inputs by name."""
    inputs = native_arrays(length, **options)
    return {**inputs, **{name: inputs[name][:, :key_heads] for name in ("key", "value")}}


def agrees_with_the_loop(inputs, **options):
    checks.holds(native_sparse_attention, reference.native_sparse, inputs, **SIZES | options)


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


@pytest.mark.parametrize(
    "ends, window_size, key_heads",
    [([9, *range(10, 27)], 5, 1), ([0, 1, 2, 12, 26], 1, 4), ([4, 8, 21, 26], 50, 4)],
    ids=str,
)
def test_chunks_and_steps_are_one_pass(ends, window_size, key_heads):
    inputs = checks.tensors(arrays(26, heads=4, key_heads=key_heads))
    sizes = {**SIZES, "window_size": window_size}
    expected = native_sparse_attention(**inputs, **sizes)[:, :, ends[0] :]
    found = in_chunks(inputs, ends, 30, sizes)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
