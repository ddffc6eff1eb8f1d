"""Decoding token by token: one program for equal blocks, called in a loop that is not compiled."""

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.prompt_reading import PromptReading, room_for, weights_of
from rt_keras.ops.blocks import places_of_rows, size


class TokenLoop(PromptReading):
    """Mixin of adapted language models: decoding token by token.

    The caches of a call are variables, which the programs of the blocks update in place. They
    belong to the call, so calls do not disturb one another.
    """

    def continue_tokens(self, tokens, caches, lengths, offset, ends, stops, steps):
        """Adds up to `steps` tokens to each row.

        Args:
            tokens: int `[batch, width]`.
            caches: nested variables, the cache of each block, of all tokens but the last of each
                row. They are updated.
            lengths: int `[batch]`, number of tokens in each row.
            offset: int `[batch]`, number of positions before the first token.
            ends: int `[batch]`, number of tokens at which a row ends.
            stops: int `[any]`, tokens of which each ends its row.
            steps: int scalar, maximum number of tokens to add.

        Returns:
            int `[batch, width]`. Rows that have ended go on until all have.
        """
        even = all(np.all(x == x[0]) for x in (lengths, offset))
        loop = self.compiled_function(
            f"tokens, {even=}", lambda: self._compiled(self._make_loop(even), False)
        )
        numbers = (tf.constant(x, tf.int32) for x in (lengths, offset, ends, stops, steps))
        # Texts of other lengths use the same function.
        width = tokens.shape[1]
        tokens = tf.pad(tokens, [[0, 0], [0, room_for(width, 1) - width]])
        return loop(tf.cast(tokens, tf.int32), caches, *numbers)[:, :width]

    def advance_function(self):
        """Returns the function that `stream` calls for a few tokens at a time."""

        def advance(tokens, caches, index, count):
            caches, index = as_variables(caches), np.array([index])
            numbers = index, np.zeros_like(index), index + count, (), count
            return self.continue_tokens(tokens, caches, *numbers), caches

        return advance

    def _make_loop(self, even):
        """Returns the function of `continue_tokens`. If `even`, all rows are at one position."""
        choose = self._compiled(self._choose)
        programs = self._step_programs()

        def loop(tokens, caches, lengths, offset, ends, stops, steps):
            def goes_on(step, _, done):
                return (step < steps) & ~tf.reduce_all(done)

            def add_token(step, tokens, done):
                place = lengths + step
                # A row that has ended stays at its last position, for which there is room.
                last = tf.minimum(place, ends) - 1
                position = last + offset
                token = tf.gather(tokens, last, axis=1, batch_dims=1)[:, None]
                chosen = choose(programs(token, caches, position[0] if even else position))
                here = (tf.range(size(tokens, 1)) == place[:, None]) & (place < ends)[:, None]
                tokens = tf.where(here, chosen[:, None], tokens)
                done |= tf.reduce_any(chosen[:, None] == stops, axis=1) | (place + 1 >= ends)
                return step + 1, tokens, done

            start = tf.constant(0), tokens, lengths >= ends
            return tf.while_loop(goes_on, add_token, start, parallel_iterations=1)[1]

        return loop

    def _step_programs(self):
        """Returns a function of tokens `[batch, 1]`, caches and a position to hidden states."""
        backbone, made_of = self.backbone, architecture(self.backbone)
        blocks, programs = backbone.transformer_layers, self._block_programs(in_place=True)

        def run(tokens, caches, position):
            x = made_of.embed(backbone, tokens, places_of_rows(position, tf.range(1)))
            rotations = self._rotations(position, 1)
            for block, program, cache, rotation in zip(blocks, programs, caches, rotations):
                x = program(*weights_of(block), x, cache, position, None, rotation)
            return x

        return run

    def _choose(self, x):
        """Returns the next token of each row, int `[batch]`, from `[batch, 1, features]`."""
        hidden = getattr(self.backbone, architecture(self.backbone).layer_norm)(x)
        logits = self.backbone.token_embedding(hidden, reverse=True)[:, 0]
        probabilities = self.sampler.compute_probabilities(logits)
        return tf.cast(self.sampler.get_next_token(probabilities), tf.int32)


def as_variables(caches):
    """Returns caches as variables, those that are variables already as they are."""
    return tf.nest.map_structure(
        lambda x: x if isinstance(x, tf.Variable) else tf.Variable(x, trainable=False), caches
    )


def draws_tokens(sampler):
    """Returns whether a sampler draws one token at a time by KerasHub's loop."""
    return type(sampler).__call__ is keras_hub.samplers.Sampler.__call__
