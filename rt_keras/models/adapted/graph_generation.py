"""Generation with adapted language models inside a graph, and token by token."""

from typing import NamedTuple

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.models.adapted.prompt_reading import PROMPT_CHUNK, state_of_rows
from rt_keras.models.generation import read_chunks, written_tokens
from rt_keras.models.stateful import Stateful
from rt_keras.ops.blocks import size

SEARCHES = (keras_hub.samplers.BeamSampler, keras_hub.samplers.ContrastiveSampler)


class Prompts(NamedTuple):
    """Prompts that a sampler continues, each from its own end.

    Args:
        tokens: int `[batch, width]`, left-aligned.
        lengths: int `[batch]`, lengths of the prompts.
        offset: int `[batch]` or 0, number of positions before the first token.
        ends: int `[batch]` or int scalar, lengths at which rows end.
    """

    tokens: tf.Tensor
    lengths: tf.Tensor
    offset: tf.Tensor
    ends: tf.Tensor


class GraphGeneration:
    """Mixin of adapted language models: generation inside a graph. Python drives `generate`."""

    def prompt_cache(self, token_ids, count):
        """Returns the cache of the first tokens of prompts.

        Args:
            token_ids: int tensor `[batch, max_length]`.
            count: int, number of tokens in the cache.

        Returns:
            A cache, as from `call_with_cache`.

        Raises:
            ValueError: if the heads cannot decode with a cache.
        """
        tokens = np.asarray(token_ids)
        state = state_of_rows(None, *tokens.shape)
        return self._read_prompts(tokens, np.full([len(tokens)], count), state)[0]

    def next_logits(self, tokens, cache, index):
        """Returns the logits of the next token, for a sampler.

        Args:
            tokens: int `[batch, max_length]`, of which the first `index` are known.
            cache: cache of the first `index - 1`.
            index: int scalar; or int `[batch]`, one for each row.

        Returns:
            Tuple of the logits of the token at `index`, `[batch, vocabulary_size]`, the hidden
            states that they are computed from, `[batch, hidden_dim]`, and the cache with one more
            position.
        """
        logits, hidden, cache = self.call_with_cache(tokens[:, index - 1, None], cache, index - 1)
        return logits[:, 0], hidden[:, 0], cache

    new_state = Stateful.new_state

    def read_on(self, token_ids, state, count):
        """Reads the next tokens of each row; see `Stateful.read_on`."""
        position = state["position"]
        hidden, cache = self._read(token_ids, state["cache"], position, count)
        return hidden, {"position": position + count, "cache": cache}

    def generate_step(self, inputs, stop_token_ids=None, sampler=None):
        """Continues a batch of prompts inside a graph, each from its own end.

        Args:
            inputs: dictionary of "token_ids", int `[batch, max_length]`, and "padding_mask", bool
                `[batch, max_length]`, True at the prompts, which are left-aligned and have at least
                one token.
            stop_token_ids: ids that end a sequence. Defaults to None, for no such ids.
            sampler: a `keras_hub.samplers.Sampler` that chooses one token at a time. Defaults to
                None, for the one that the model was compiled with.

        Returns:
            Dictionary of "token_ids", the prompts with the new tokens, and "padding_mask", True up
            to the stop token.

        Raises:
            ValueError: if the heads cannot decode with a cache, or the sampler is a search.
        """
        self.backbone.check_cached()
        sampler = sampler or self.sampler
        if isinstance(sampler, SEARCHES):
            # The number of steps of their loops depends on the prompts, unknown inside a graph.
            raise ValueError(
                "generate_step() needs a sampler that chooses one token at a time; generate() "
                f"takes others. Received: {type(sampler).__name__}"
            )
        tokens = tf.cast(inputs["token_ids"], tf.int32)
        mask = tf.cast(inputs["padding_mask"], tf.bool)
        lengths, batch = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1), size(tokens, 0)

        def read(chunk, cache, start, count):
            return self._read(chunk, cache, tf.fill([batch], start), count)[1]

        width, chunk_size = size(tokens, 1), PROMPT_CHUNK if self.backbone.reads_chunks else 1
        cache = self.new_cache(batch, width)
        cache = read_chunks(read, tokens, lengths - 1, cache, chunk_size)
        columns = width + tf.reduce_max(lengths) - tf.reduce_min(lengths)
        prompts = Prompts(tokens, lengths, 0, width)
        tokens = self._sample(sampler, False, columns, prompts, cache, None, stop_token_ids)
        return {"token_ids": tokens, "padding_mask": written_tokens(tokens, mask, stop_token_ids)}

    def _sample(self, sampler, even, columns, prompts, cache, hidden, stop_token_ids):
        """Continues prompts of different lengths.

        Args:
            sampler: a `keras_hub.samplers.Sampler`.
            even: bool, whether all rows are at the same position.
            columns: int or int scalar, length of the rows after a shift to the right that makes all
                prompts end in the same column.
            prompts: `Prompts`.
            cache: cache of the prompts without their last tokens.
            hidden: `[batch, length or less, hidden_dim]`, hidden states of the last tokens; or
                None.
            stop_token_ids: tuple or list of ints, or None.

        Returns:
            int `[batch, width]`.
        """
        tokens, lengths, offset, ends = prompts
        width, index = size(tokens, 1), tf.reduce_max(lengths)
        shift = index - lengths
        # [batch, columns]
        places = tf.range(columns) - shift[:, None]
        known = places < lengths[:, None]

        def moved(x):
            # The first entry of a row fills the space to its left.
            inside = tf.clip_by_value(places - (width - size(x, 1)), 0, size(x, 1) - 1)
            return tf.gather(x, inside, axis=1, batch_dims=1)

        def following(tokens, cache, index):
            # A search has several sequences for each prompt.
            beams = tf.shape(tokens)[0] // tf.shape(lengths)[0]
            # A finished row stays at its last position, for which there is room.
            limit = ends + shift
            position = tf.minimum(index, limit) - 1 - shift + offset
            position = position[0] if even else tf.repeat(position, beams)
            logits, states, cache = self.call_with_cache(
                tokens[:, index - 1, None], cache, position
            )
            # A finished row continues with a token of probability 1, which costs a search nothing:
            # a stop token if there is one.
            end = stop_token_ids[0] if stop_token_ids else 0
            ending = tf.one_hot(end, logits.shape[-1], 0.0, logits.dtype.min, dtype=logits.dtype)
            ended = index >= tf.repeat(limit, beams)
            return tf.where(ended[:, None], ending, logits[:, 0]), states[:, 0], cache

        tokens = sampler(
            next=following,
            prompt=tf.where(known, moved(tokens), 0),
            cache=cache,
            index=index,
            mask=known,
            stop_token_ids=stop_token_ids,
            hidden_states=None if hidden is None else moved(hidden),
            model=self,
        )
        back = tf.minimum(tf.range(width) + shift[:, None], columns - 1)
        return tf.gather(tokens, back, axis=1, batch_dims=1)
