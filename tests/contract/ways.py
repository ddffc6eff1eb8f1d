"""The ways in which heads compute the same: in one pass, from a cache, in chunks."""

import re

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models.stateful import NO_END
from tests.contract import loops
from tests.contract.kinds import BATCH, DEPTH, VALUE_DEPTH

TOLERANCE = 1e-9


def one_pass(heads, inputs, causal, **options):
    """The outputs of one call, as an array."""
    return np.asarray(heads.group(**inputs, use_causal_mask=causal, **options))


def causal_pass(heads):
    """The outputs of one causal call on the whole sequence, computed once."""
    if heads.causal_outputs is None:
        heads.causal_outputs = one_pass(heads, heads.inputs(), causal=True)
    return heads.causal_outputs


def directions(group):
    """Whether calls may be causal: the values of `use_causal_mask` that the group takes."""
    found = [] if not group.abilities.bidirectional else [False]
    return [*found, True] if group.abilities.causal else found


def agree(found, expected, what, tolerance=TOLERANCE):
    """Asserts that numbers differ by no more than a share of the largest, of 1 if that is more."""
    found, expected = np.asarray(found), np.asarray(expected)
    worst = np.max(np.abs(found - expected), initial=0.0)
    assert worst <= tolerance * max(1.0, np.max(np.abs(expected), initial=0.0)), (
        f"{what}: differs by {worst}"
    )


def is_as_the_loop(heads, causal, mask=None):
    """One pass gives what the loop gives."""
    inputs = heads.inputs()
    if causal and mask is None:
        found = causal_pass(heads)
    else:
        masks = {} if mask is None else {"query_mask": mask, "key_mask": mask}
        found = one_pass(heads, inputs, causal, **masks)
    expected = loops.expected(heads.layer.__name__, heads.group, **inputs, causal=causal, mask=mask)
    if expected is not None:
        agree(found, expected, f"one pass, causal={causal}, padding={mask is not None}")


def right_padding(heads):
    """A mask that leaves out another number of positions in each row."""
    left = heads.length - np.array([[0], [heads.length // 3]])
    return np.arange(heads.length) < left


def part(inputs, first, last):
    """Positions of the inputs, by their names in the methods that decode."""
    return {
        name: x if x is None else x[:, first:last] if len(x.shape) == 2 else x[:, :, first:last]
        for name, x in inputs.items()
    }


def tensors(inputs):
    """Inputs as the methods that decode are given them."""
    return {name: None if x is None else tf.constant(x) for name, x in inputs.items()}


def new_cache(heads, max_length):
    return heads.group.new_cache(BATCH, max_length, DEPTH, VALUE_DEPTH)


def steps_are_one_pass(heads, start):
    """A prefill of `start` positions and a step for each further one."""
    inputs, length, group = tensors(heads.inputs()), heads.length, heads.group
    expected = causal_pass(heads)
    cache = new_cache(heads, length)
    if start:
        # Two more positions than count, whose contents must not matter; a grid is always whole.
        prompt = part(inputs, 0, length if "grid" in heads.chosen else start + 2)
        cache = group.make_cache(**prompt, count=start, max_length=length)
        output = one_pass(heads, prompt, True)
        agree(output[:, :, :start], expected[:, :, :start], f"prefill of {start}")
    for i in range(start, length):
        output, cache = group.call_with_cache(**part(inputs, i, i + 1), cache=cache, position=i)
        agree(output, expected[:, :, i : i + 1], f"step {i} after a prefill of {start}")


def read_in_chunks(read, cache, inputs, expected, size, tolerance=TOLERANCE):
    """Chunks of rows at positions of their own, which end in padding, give what one pass gives.

    Args:
        read: function of a chunk, a cache, positions and counts; returns outputs and a cache.
        cache: a new cache.
        inputs: dictionary of arrays `[batch, ..., length, features]`, or None.
        expected: array of the outputs of one pass.
        size: int, positions of a chunk.
        tolerance: float.
    """
    position, length = np.zeros(BATCH, np.int32), expected.shape[-2]
    rng = np.random.default_rng(size)
    # Traced once, which takes less time than the calls of single operations for each chunk.
    read = tf.function(read, autograph=False)
    while np.any(position < length):
        count = np.minimum(rng.integers(0, size + 1, BATCH), length - position).astype(np.int32)
        chunk = {}
        for name, x in inputs.items():
            if x is not None:
                junk = rng.normal(size=(*x.shape[:-2], size, x.shape[-1])).astype(x.dtype)
                for row, (first, number) in enumerate(zip(position, count)):
                    junk[row, ..., :number, :] = x[row, ..., first : first + number, :]
            chunk[name] = None if x is None else tf.constant(junk)
        output, cache = read(chunk, cache, tf.constant(position), tf.constant(count))
        for row, (first, number) in enumerate(zip(position, count)):
            agree(
                output[row, ..., :number, :],
                expected[row, ..., first : first + number, :],
                f"chunk of {size} at {first}",
                tolerance,
            )
        position = position + count


def chunks_are_one_pass(heads, size, max_length):
    """Chunks of a size, in which rows are at positions of their own and end in padding."""

    def read(chunk, cache, position, count):
        return heads.group.call_with_cache(**chunk, cache=cache, position=position, count=count)

    cache = new_cache(heads, max_length)
    read_in_chunks(read, cache, heads.inputs(), causal_pass(heads), size)


def chunks_step_by_step(heads, size):
    """Chunks of a kind that reads positions one by one: all rows alike, and none of them padded."""
    inputs, length, group = tensors(heads.inputs()), heads.length, heads.group
    expected = causal_pass(heads)
    cache = new_cache(heads, length)
    for first in range(0, length, size):
        chunk = part(inputs, first, first + size)
        output, cache = group.call_with_cache(**chunk, cache=cache, position=first)
        agree(output, expected[:, :, first : first + size], f"chunk of {size} at {first}")


def refuses_rows(heads):
    """Rows at positions of their own are refused by name, not computed in another way."""
    with pytest.raises(ValueError, match=re.escape(heads.group.kind)):
        heads.group.call_with_cache(
            **part(tensors(heads.inputs()), 0, 3),
            cache=new_cache(heads, heads.length),
            position=tf.constant([0, 1]),
            count=tf.constant([2, 1]),
        )


def crosses_step_by_step(heads):
    """Attention to another sequence, one query at a time."""
    inputs, group = tensors(heads.inputs()), heads.group
    expected = one_pass(heads, inputs, causal=False)
    query = inputs.pop("query")
    first = group.cross_attention_prefill(query[:, :, :3], **inputs)
    agree(first, expected[:, :, :3], "the first queries of another sequence")
    for i in range(0, heads.length, 5):
        output = group.cross_attention_step(query[:, :, i : i + 1], **inputs, position=i)
        agree(output, expected[:, :, i : i + 1], f"query {i} of another sequence")


def compute_the_same(heads, sizes=(1, 7, 64), starts=(0, 5)):
    """All that a kind with some options must do, or refuse.

    Args:
        heads: `Heads`.
        sizes: sizes of chunks.
        starts: numbers of positions that are read before steps of one.
    """
    group = heads.group
    for causal in directions(group):
        is_as_the_loop(heads, causal)
        is_as_the_loop(heads, causal, right_padding(heads) if heads.keys == heads.length else None)
    if group.abilities.across:
        crosses_step_by_step(heads)
    if not group.abilities.cached:
        with pytest.raises(ValueError, match=re.escape(heads.group.kind)):
            new_cache(heads, heads.length)
        return
    for start in starts:
        steps_are_one_pass(heads, start)
    # A recurrent state has no end.
    end = NO_END if group.abilities.stateful else heads.length
    for size in sizes:
        # A chunk of one position, and of none in some rows, is a step.
        if size == 1 or group.abilities.chunks:
            chunks_are_one_pass(heads, size, end)
        else:
            chunks_step_by_step(heads, size)
            refuses_rows(heads)
