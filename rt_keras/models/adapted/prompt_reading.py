"""Chunked prefill, so that neither memory nor compilation grows with the prompts."""

import concurrent.futures
import functools
import os
import threading

import numpy as np
import tensorflow as tf

from rt_keras import progress
from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.attention import decoding
from rt_keras.models.adapted.decoding import Decoding
from rt_keras.models.generation import bucket
from rt_keras.models.programs import compile_once
from rt_keras.models.shared_blocks import what_differs, without_names
from rt_keras.models.token_loop import room_for
from rt_keras.ops.blocks import places_of_rows
from rt_keras.ops.devices import has_accelerator

# Number of tokens of a prompt that pass through the model at once.
PROMPT_CHUNK = 1024
# Number of chunks that pass through the blocks at once, each in a thread, because the loops of
# sparse heads use only one processor.
CHUNKS_AT_ONCE = min(os.cpu_count() or 1, 8)
TRACING = threading.Lock()


class PromptReading(Decoding):
    """Mixin of adapted language models: chunked prefill of prompts of different lengths.

    Rows with the same number of chunks are read together. Each chunk passes through the model block
    by block. Blocks that differ only in the values of their weights share one compiled program, so
    compilation takes as long, and a chunk as much memory, as in a model of one block.
    """

    def _read_prompts(self, tokens, counts, state, max_length, verbose=1, with_hidden=False):
        """Reads the first tokens of each row.

        Args:
            tokens: int array `[batch, length]`.
            counts: int array `[batch]`, number of tokens to read in each row.
            state: state of the preceding tokens, with as many rows; or None.
            max_length: int, maximum number of positions, without a state.
            verbose: 0 for no output, 1 for a progress bar on long prompts.
            with_hidden: bool, whether to return the hidden states.

        Returns:
            Tuple of the cache, the hidden states, `[batch, length, hidden_dim]`, or None, and the
            number of positions that there is room for.

        Raises:
            ValueError: if the heads cannot decode with a cache, or there is no room.
        """
        self._check_cached()
        room = max_length if state is None else state["room"]
        start = np.zeros([len(tokens)], np.int32) if state is None else state["count"]
        last = int((start + counts).max())
        if last > room:
            raise ValueError(
                f"state has room for {room} tokens, the max_length of its text. Received: {last} "
                "tokens with the prompts"
            )
        hidden = None
        if with_hidden:
            hidden = np.zeros([*tokens.shape, self.backbone.hidden_dim], self.compute_dtype)
        places = room_for(room, len(tokens))
        chunk, read = PROMPT_CHUNK, self._read_chunks
        if not self._reads_chunks():
            chunk, read = 1, self._read_one_by_one
        groups = _rows_by_chunks(counts, chunk, start if chunk == 1 else np.zeros_like(start))
        total = sum(len(chunks) for _, chunks in groups)
        caches = []
        shown = progress.track(range(total), "reading the prompt", total, verbose and total > 1)
        steps = iter(shown)
        for rows, chunks in groups:
            # No other name for the empty cache, which would keep it in memory.
            caches.append(self._cache_of_rows(rows, state, places))
            parts = [_part(tokens[rows], counts[rows], start[rows], *bounds) for bounds in chunks]
            read_parts = read(parts, caches[-1], with_hidden)
            for (first, width), states in zip(chunks, read_parts, strict=True):
                if with_hidden:
                    width = min(width, tokens.shape[1] - first)
                    hidden[rows, first : first + width] = states[:, :width]
                next(steps)
        return _joined(caches, [rows for rows, _ in groups]), hidden, room

    def _cache_of_rows(self, rows, state, places):
        """Returns the list of the caches of all blocks, of some rows, before a prompt is read."""
        if state is None:
            return list(self.new_cache(len(rows), places))
        if len(rows) == len(state["count"]):
            return list(state["cache"])
        of_rows = functools.partial(tf.gather, indices=rows)
        return list(tf.nest.map_structure(of_rows, state["cache"]))

    def _reads_chunks(self):
        """Returns True if all heads read chunks, at a different position in each row."""
        layers = self._causal_attention()
        return all(group.reads_chunks for layer in layers for group in layer.head_groups)

    def _read_chunks(self, parts, cache, with_hidden):
        """Computes the hidden states of consecutive chunks.

        A chunk enters a block as soon as the previous chunk has left it, so several processors are
        busy.

        Args:
            parts: list of chunks from `_part`.
            cache: list of the caches of all blocks. They are replaced one by one, so that memory
                never holds two of each.
            with_hidden: bool, whether to return the hidden states instead of None.

        Yields:
            `[batch, chunk, hidden_dim]`.
        """
        backbone, made_of = self.backbone, architecture(self.backbone)
        blocks = backbone.transformer_layers
        programs = self._block_programs(in_place=False, jit_compile=has_accelerator())
        # Done when a chunk has left a block.
        left = [[concurrent.futures.Future() for _ in blocks] for _ in parts]

        def read(chunk):
            tokens, position, count = parts[chunk]
            positions = places_of_rows(position, tf.range(tokens.shape[1]))
            x = made_of.embed(backbone, tf.constant(tokens), positions)
            rotations = self._rotations(position, tokens.shape[1])
            for number, block in enumerate(blocks):
                if chunk:
                    left[chunk - 1][number].result()
                x, cache[number] = programs[number](
                    *weights_of(block), x, cache[number], position, count, rotations[number]
                )
                left[chunk][number].set_result(None)
            return getattr(backbone, made_of.layer_norm)(x) if with_hidden else None

        def read_or_fail(chunk):
            try:
                return read(chunk)
            except BaseException as error:
                # The next chunk, which waits for this one, fails with it.
                for future in left[chunk]:
                    if not future.done():
                        future.set_exception(error)
                raise

        with concurrent.futures.ThreadPoolExecutor(CHUNKS_AT_ONCE) as pool:
            yield from pool.map(read_or_fail, range(len(parts)))

    def _rotations(self, position, length):
        """Returns the rotation of each layer's vectors; layers with the same one share it."""
        attention, found = self._causal_attention(), {}
        for layer in attention:
            name = _rotation_name(layer)
            if name not in found:
                found[name] = layer.rotation_at(position, length)
        return [found[_rotation_name(layer)] for layer in attention]

    def _block_programs(self, in_place, jit_compile=None):
        """Returns the function of each block.

        Args:
            in_place: bool, whether the cache consists of variables, which are updated. A function
                then returns `()` in place of the new cache.
            jit_compile: bool, whether XLA compiles the functions. Defaults to None, for
                `jit_generate`.
        """
        jit_compile = self.jit_generate if jit_compile is None else jit_compile
        blocks = zip(self.backbone.transformer_layers, self._causal_attention())
        return [self._block_program(block, layer, in_place, jit_compile) for block, layer in blocks]

    def _block_program(self, block, attention, in_place, jit_compile):
        """Returns the function of a block, given its weights. Equal blocks share it."""
        name = f"block, {what_differs(block)}, {in_place}, {jit_compile}"
        cache_name = architecture(self.backbone).cache

        def run(trainable, non_trainable, x, cache, position, count, rotation):
            variables = tf.nest.flatten(cache)
            if in_place:
                cache = tf.nest.map_structure(tf.convert_to_tensor, cache)

            def attend(layer, inputs):
                output, kept = layer.call_with_cache(inputs, cache, position, count=count)
                found.append(kept)
                return output

            # Keras's layers keep the state of a call, so only one thread traces at a time.
            found = []
            with TRACING, decoding(attend, rotation):
                # The block passes this placeholder to its attention, which has its own cache.
                placeholder = {cache_name: tf.zeros([1])}
                (x, _), _ = block.stateless_call(trainable, non_trainable, x, **placeholder)
            if not in_place:
                return x, found[0]
            for variable, value in zip(variables, tf.nest.flatten(found[0]), strict=True):
                variable.assign(value)
            return x, ()

        return compile_once(self, name, run, jit_compile)

    def _read_one_by_one(self, parts, cache, with_hidden):
        """Reads single tokens, for heads that do not read chunks. All rows are at one position."""
        function = compile_once(self, "reading, steps", self._read)
        for tokens, position, _ in parts:
            hidden, cache[:] = function(tf.constant(tokens), tuple(cache), position[0])
            yield hidden


def weights_of(block):
    """Returns the lists of the values of a block's trainable and other variables."""
    kinds = block.trainable_variables, block.non_trainable_variables
    return [[weight.value for weight in kind] for kind in kinds]


def _part(tokens, counts, start, first, width):
    """Returns a chunk of some rows, its positions, and its number of tokens.

    Args:
        tokens: int array `[batch, length]`.
        counts: int array `[batch]`, number of tokens to read in each row.
        start: int array `[batch]`, position of the first token.
        first, width: ints, start and length of the chunk.

    Returns:
        Tuple of an int array `[batch, width]` and two int tensors `[batch]`.
    """
    part = tokens[:, first : first + width]
    part = np.pad(part, [[0, 0], [0, width - part.shape[1]]])
    count = np.clip(counts - first, 0, width)
    return part, *(tf.constant(x, tf.int32) for x in (start + first, count))


def _rows_by_chunks(counts, chunk, start):
    """Returns the rows that have the same number of chunks, and the starts and lengths of these.

    Rows that start at different positions are apart.

    The last chunk of a group of rows is as short as possible, rounded up to a power of two.

    Args:
        counts: int array `[batch]`, number of tokens of each row.
        chunk: int, number of tokens in a chunk.
        start: int array `[batch]`.

    Returns:
        List of pairs of an array of rows and a list of pairs of ints.

    >>> _rows_by_chunks(np.array([20, 300, 290]), 256, np.zeros(3))
    [(array([0]), [(0, 64)]), (array([1, 2]), [(0, 256), (256, 64)])]
    """
    found = []
    of_rows = np.stack([-(-counts // chunk), start], axis=1)
    for number, first_position in np.unique(of_rows, axis=0):
        rows = np.flatnonzero(np.all(of_rows == [number, first_position], axis=1))
        chunks = [(first * chunk, chunk) for first in range(int(number))]
        if chunks:
            first, _ = chunks.pop()
            chunks.append((first, bucket(int(counts[rows].max()) - first, chunk)))
        found.append((rows, chunks))
    return found


def _joined(caches, rows):
    """Joins the caches of groups of rows."""
    if len(caches) == 1:
        return tuple(caches[0])
    order = np.argsort(np.concatenate(rows))
    return tuple(
        tf.nest.map_structure(lambda *parts: tf.gather(tf.concat(parts, axis=0), order), *of_block)
        for of_block in zip(*caches)
    )


def _rotation_name(attention):
    """Returns a name that attention layers with the same rotation share."""
    layer = attention.rotary_embedding
    config = None if layer is None else without_names(layer.get_config())
    return str((config, attention.rotary_scale, attention.key_dim))
