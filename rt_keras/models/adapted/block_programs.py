"""Adapted language models block by block: a program for equal blocks, given weights and a cache."""

import threading

import tensorflow as tf

from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.attention import DecodingStep
from rt_keras.models.generation import as_tensor
from rt_keras.models.programs import compile_once
from rt_keras.models.shared_blocks import new_caches, what_differs
from rt_keras.ops.blocks import places_of_rows, size

TRACING = threading.Lock()


class BlockPrograms:
    """Mixin of adapted language models that reads and decodes tokens with the caches of the blocks.

    KerasHub's models hand each block a slice of one tensor of all keys and values. Here, each block
    has what its heads need, which for most kinds of heads does not grow with the sequence. Blocks
    that differ only in the values of their weights share one program.
    """

    def new_cache(self, batch, max_length):
        """Returns an empty cache for `call_with_cache`.

        Args:
            batch: int or scalar tensor, number of rows.
            max_length: int, maximum number of positions.

        Returns:
            Tuple of the cache of each layer: nested dictionaries and tuples of tensors with the
            batch on axis 0. Equal layers share theirs.
        """
        return new_caches(self.backbone.causal_attention, batch, max_length)

    def call_with_cache(self, token_ids, cache, cache_update_index, count=None):
        """Runs the model on the next tokens, given the cache of the previous ones.

        Args:
            token_ids: int `[batch, length]`.
            cache: cache from the last call or from `new_cache`.
            cache_update_index: int scalar, position of the first of these tokens; or int `[batch]`,
                one for each row.
            count: int `[batch]`, number of tokens in each row, the first ones; the others are
                padding. Defaults to None, for no padding.

        Returns:
            Tuple of the logits, `[batch, length, vocabulary_size]`, the last hidden states,
            `[batch, length, hidden_dim]`, and the cache with these positions.
        """
        token_ids = as_tensor("token_ids", token_ids, [None, None])
        hidden, cache = self._read(token_ids, cache, cache_update_index, count)
        return self.token_logits(hidden), hidden, cache

    def states_in_place(self, tokens, caches, position):
        """See `rt_keras.models.token_loop`."""
        programs = self._block_programs(in_place=True)
        return self._run_blocks(programs, tokens, caches, position)[0]

    def _read(self, token_ids, cache, position, count=None):
        """Returns the hidden states of the next tokens, and the cache."""
        programs = self._block_programs(in_place=False, jit_compile=False)
        return self._run_blocks(programs, token_ids, cache, position, count)

    def _run_blocks(self, programs, token_ids, caches, position, count=None):
        """Returns the hidden states of the next tokens, and the new cache of each block."""
        # [batch, length, hidden_dim]
        x, caches_after = self.embedded(token_ids, position), []
        blocks = self.backbone.transformer_layers
        for block, program, cache in zip(blocks, programs, caches, strict=True):
            x, cache = program(*weights_of(block), x, cache, position, count)
            caches_after.append(cache)
        return self.normalized(x), tuple(caches_after)

    def _block_programs(self, in_place, jit_compile=None):
        """Returns the function of each block, of its weights, inputs, cache and their place.

        Args:
            in_place: bool, whether the cache consists of variables, which are updated. A function
                then returns `()` in place of the new cache.
            jit_compile: bool, whether XLA compiles the functions. Defaults to None, for
                `jit_generate`.
        """
        jit_compile = self.jit_generate if jit_compile is None else jit_compile
        blocks = self.backbone.transformer_layers
        return [self._block_program(block, in_place, jit_compile) for block in blocks]

    def _block_program(self, block, in_place, jit_compile):
        """Returns the function of a block. Equal blocks share it."""
        name = f"block, {what_differs(block)}, {in_place}, {jit_compile}"
        cache_name = architecture(self.backbone).cache

        def run(trainable, non_trainable, x, cache, position, count):
            variables = tf.nest.flatten(cache)
            if in_place:
                cache = tf.nest.map_structure(tf.convert_to_tensor, cache)
            step = {cache_name: DecodingStep(cache, position, count)}
            # Keras's layers keep the state of a call, so only one thread traces at a time.
            with TRACING:
                (x, step), _ = block.stateless_call(trainable, non_trainable, x, **step)
            if not in_place:
                return x, step.cache
            for variable, value in zip(variables, tf.nest.flatten(step.cache), strict=True):
                variable.assign(value)
            return x, ()

        return compile_once(self, name, run, jit_compile)

    # The layers around the blocks.

    def embedded(self, token_ids, position=0):
        """Returns the inputs of the first block, `[batch, length, hidden_dim]`.

        Args:
            token_ids: int `[batch, length]`.
            position: int scalar or `[batch]`, position of the first token. Defaults to 0.
        """
        # [batch or 1, length]
        positions = places_of_rows(position, tf.range(size(token_ids, 1)))
        return architecture(self.backbone).embed(self.backbone, token_ids, positions)

    def normalized(self, x):
        """Returns the hidden states of the model, given the outputs of the last block."""
        return getattr(self.backbone, architecture(self.backbone).layer_norm)(x)

    def token_logits(self, hidden):
        """Computes the logits of hidden states, `[..., vocabulary_size]`."""
        return self.backbone.token_embedding(hidden, reverse=True)


def weights_of(block):
    """Returns the lists of the values of a block's trainable and other variables."""
    kinds = block.trainable_variables, block.non_trainable_variables
    return [[weight.value for weight in kind] for kind in kinds]
