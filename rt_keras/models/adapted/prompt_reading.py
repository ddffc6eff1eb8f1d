"""Chunked prefill, so that neither memory nor compilation grows with the prompts."""

import concurrent.futures
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rt_keras.data import progress
from rt_keras.models.adapted.block_programs import BlockPrograms, weights_of
from rt_keras.models.generation import bucket
from rt_keras.models.token_loop import room_for
from rt_keras.ops.devices import has_accelerator

# Number of tokens of a prompt that pass through the model at once.
PROMPT_CHUNK = 1024
# Number of chunks that pass through the blocks at once, each in a thread, because the loops of
# sparse heads use only one processor.
CHUNKS_AT_ONCE = min(os.cpu_count() or 1, 8)


class Chunk(NamedTuple):
    """Tokens of some rows that pass through the model at once.

    Args:
        first: int, place of the first of them in their rows.
        tokens: int array `[rows, width]`.
        position: int tensor `[rows]`, position of the first token, after a state.
        count: int tensor `[rows]`, number of tokens that are no padding.
    """

    first: int
    tokens: np.ndarray
    position: tf.Tensor
    count: tf.Tensor


class PromptReading(BlockPrograms):
    """Mixin of adapted language models: chunked prefill of prompts of different lengths.

    Rows with the same number of chunks are read together. Each chunk passes through the model block
    by block, so compilation takes as long, and a chunk as much memory, as in a model of one block.
    """

    def _read_prompts(self, tokens, counts, state, verbose=1, with_hidden=False):
        """Reads the first tokens of each row.

        Args:
            tokens: int array `[batch, length]`.
            counts: int array `[batch]`, number of tokens to read in each row.
            state: state of the preceding tokens, with as many rows; see `state_of_rows`.
            verbose: 0 for no output, 1 for a progress bar on long prompts.
            with_hidden: bool, whether to return the hidden states.

        Returns:
            Tuple of the cache, and the hidden states, `[batch, length, hidden_dim]`, or None.

        Raises:
            ValueError: if the heads cannot decode with a cache, or there is no room.
        """
        self.backbone.check_cached()
        room, last = state["room"], int((state["count"] + counts).max())
        if last > room:
            raise ValueError(
                f"state has room for {room} tokens, the max_length of its text. Received: {last} "
                "tokens with the prompts"
            )
        hidden = None
        if with_hidden:
            hidden = np.zeros([*tokens.shape, self.backbone.hidden_dim], self.compute_dtype)
        chunk_size = PROMPT_CHUNK if self.backbone.reads_chunks else 1
        groups = rows_in_chunks(tokens, counts, state["count"], chunk_size)
        total = sum(len(chunks) for _, chunks in groups)
        shown = progress.track(range(total), "reading the prompt", total, verbose and total > 1)
        steps, caches = iter(shown), []
        for rows, chunks in groups:
            # No other name for the empty cache, which would keep it in memory.
            caches.append(self._cache_of_rows(rows, state))
            states_of_chunks = self._read_chunks(chunks, caches[-1], with_hidden)
            for chunk, states in zip(chunks, states_of_chunks, strict=True):
                if with_hidden:
                    places = slice(chunk.first, chunk.first + chunk.tokens.shape[1])
                    hidden[rows, places] = states[:, : tokens.shape[1] - chunk.first]
                next(steps)
        return _joined(caches, [rows for rows, _ in groups]), hidden

    def _cache_of_rows(self, rows, state):
        """Returns the list of the caches of all blocks, of some rows, before a prompt is read."""
        batch = len(state["count"])
        if state["cache"] is None:
            return list(self.new_cache(len(rows), room_for(state["room"], batch)))
        if len(rows) == batch:
            return list(state["cache"])
        return list(tf.nest.map_structure(lambda x: tf.gather(x, rows), state["cache"]))

    def _read_chunks(self, chunks, cache, with_hidden):
        """Computes the hidden states of consecutive chunks.

        While a chunk passes through a block, the one after it passes through the block before, so
        several processors are busy.

        Args:
            chunks: list of `Chunk`.
            cache: list of the caches of all blocks. They are replaced one by one, so that memory
                never holds two of each.
            with_hidden: bool, whether to return the hidden states instead of None.

        Yields:
            `[rows, width, hidden_dim]`.
        """
        blocks = self.backbone.transformer_layers
        # XLA takes long to compile chunks for a processor, but not single tokens.
        jit_compile = has_accelerator() if self.backbone.reads_chunks else None
        programs = self._block_programs(in_place=False, jit_compile=jit_compile)
        states = [None] * len(chunks)

        def pass_through(number, place):
            _, tokens, position, count = chunks[number]
            if place == 0:
                states[number] = self.embedded(tf.constant(tokens), position)
            states[number], cache[place] = programs[place](
                *weights_of(blocks[place]), states[number], cache[place], position, count
            )

        with concurrent.futures.ThreadPoolExecutor(CHUNKS_AT_ONCE) as pool:
            for step in range(len(chunks) + len(blocks) - 1):
                numbers = range(max(0, step - len(blocks) + 1), min(step + 1, len(chunks)))
                list(pool.map(pass_through, numbers, [step - number for number in numbers]))
                first = step - len(blocks) + 1
                if first >= 0:
                    yield self.normalized(states[first]) if with_hidden else None
                    states[first] = None


def state_of_rows(state, rows, room):
    """Returns a state from `AdaptedCausalLM.read` with the given number of rows.

    Args:
        state: the state, of as many rows or of one; or None.
        rows: int.
        room: int, number of tokens that the state has room for if `state` is None. It then has no
            tokens, and None as "cache".
    """
    if state is None:
        return {"count": np.zeros([rows], np.int32), "room": room, "cache": None}
    batch = len(state["count"])
    if batch == rows:
        return state
    if batch != 1:
        raise ValueError(f"state has {batch} rows, but the inputs have {rows}")
    cache = tf.nest.map_structure(lambda x: tf.repeat(x, rows, axis=0), state["cache"])
    return {**state, "count": np.repeat(state["count"], rows), "cache": cache}


def rows_in_chunks(tokens, counts, start, chunk):
    """Returns the rows that have the same number of chunks, and these.

    The last chunk of a group of rows is as short as possible, rounded up to a power of two.

    Args:
        tokens: int array `[batch, length]`.
        counts: int array `[batch]`, number of tokens to read in each row.
        start: int array `[batch]`, position of the first token of each row.
        chunk: int, number of tokens in a chunk.

    Returns:
        List of pairs of an array of rows and a list of `Chunk`.

    >>> groups = rows_in_chunks(np.ones([3, 300]), np.array([20, 300, 290]), np.zeros(3), 256)
    >>> [(rows, [chunk.tokens.shape for chunk in chunks]) for rows, chunks in groups]
    [(array([0]), [(1, 64)]), (array([1, 2]), [(2, 256), (2, 64)])]
    """
    groups, numbers = [], -(-counts // chunk)
    for number in np.unique(numbers):
        rows = np.flatnonzero(numbers == number)
        longest, chunks = int(counts[rows].max()), []
        for first in range(0, longest, chunk):
            width = bucket(longest - first, chunk)
            part = tokens[rows, first : first + width]
            part = np.pad(part, [[0, 0], [0, width - part.shape[1]]])
            count = np.clip(counts[rows] - first, 0, width)
            places = (tf.constant(x, tf.int32) for x in (start[rows] + first, count))
            chunks.append(Chunk(first, part, *places))
        groups.append((rows, chunks))
    return groups


def _joined(caches, rows):
    """Joins the caches of groups of rows."""
    if len(caches) == 1:
        return tuple(caches[0])
    order = np.argsort(np.concatenate(rows))
    return tuple(
        tf.nest.map_structure(lambda *parts: tf.gather(tf.concat(parts, axis=0), order), *block)
        for block in zip(*caches)
    )
