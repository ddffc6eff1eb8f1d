"""Base class of the language models: logits and generation."""

import functools

import numpy as np
import tensorflow as tf

from rt_keras.models.chunked_loss import ChunkedLoss, losses_of_layer
from rt_keras.models.generation import (
    bucket,
    shortest_prompt,
    written_tokens,
)
from rt_keras.models.left_padding import generate_from_first_tokens
from rt_keras.models.presets import Loadable
from rt_keras.models.programs import compile_once
from rt_keras.models.shared_blocks import compiled_blocks
from rt_keras.models.token_loop import as_variables, continue_tokens, draws_in_place, room_for
from rt_keras.ops.blocks import size
from rt_keras.ops.devices import has_tpu


class LanguageModel(Loadable, ChunkedLoss):
    """Mixin of language models that computes logits of each next token and generates text.

    ```
    logits = hidden_states(inputs) · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer replaces this product. If the embedding
    is not as wide as the blocks, another dense layer precedes it.

    List the mixin before KerasHub's base classes. A subclass defines
    `hidden_states(inputs, training)` and, for generation, `prefill` and `call_with_cache`. For
    heads that decode without a cache, it defines `decode_all(tokens, padding_mask, *encoded)`
    instead. With an encoder, it also defines `encode(inputs)`, which returns a tuple of the
    arguments that these three methods take from the encoder.
    """

    # Prefix of the names of the decoder's inputs.
    decoder_prefix = ""

    def make_output_layers(self):
        """Creates the layers between the hidden states of the backbone and the logits."""
        backbone, self.output_projection, self.output_dense = self.backbone, None, None
        if backbone.embedding_dim not in (None, backbone.hidden_dim):
            self.output_projection = backbone.make_dense(
                backbone.embedding_dim, "output_projection"
            )
        if not backbone.tie_embeddings:
            self.output_dense = backbone.make_dense(backbone.vocabulary_size, "output_dense")

    def token_logits(self, hidden):
        """Computes the logits of hidden states.

        Args:
            hidden: `[..., hidden_dim]`.

        Returns:
            `[..., vocabulary_size]`.
        """
        if self.output_projection is not None:
            hidden = self.output_projection(hidden)
        if self.output_dense is not None:
            return self.output_dense(hidden)
        return self.backbone.token_embedding(hidden, reverse=True)

    def token_losses(self, hidden, labels, chunk_size):
        """Computes the cross entropy of each token, and the most likely tokens.

        Args:
            hidden: `[batch, length, hidden_dim]`.
            labels: int `[batch, length]`.
            chunk_size: int, number of positions whose logits are computed at once.

        Returns:
            Both `[batch, length]`; see `rt_keras.ops.chunked_cross_entropy`.
        """
        if self.output_projection is not None:
            hidden = self.output_projection(hidden)
        layer = self.output_dense or self.backbone.token_embedding
        return losses_of_layer(layer, hidden, labels, chunk_size)

    def get_config(self):
        return {**super().get_config(), "loss_chunk_size": self.loss_chunk_size}

    @property
    def cached_decoding(self):
        """True if generation uses a cache, so that tokens cost the same at every position.

        This is the case if no output depends on a later token: with `LocalHeads`, `RoutingHeads` of
        assignment "nearest", `StridedHeads` and `FullHeads`. The last two cache all keys.
        `FullHeads` and `LocalHeads` can attend to an encoder.

        With other heads, the keys that a query sees depend on the whole sequence. For each token,
        generation then calls the model, or its decoder, on all `max_length` positions, with later
        ones as padding. This costs as much as `max_length` parallel passes. With "balanced" routing
        the result is that of the model on each prefix. With `RandomHeads` and heads of
        `rt_keras.convert`, it also depends on `max_length`.
        """
        return self.backbone.cached_decoding

    # Generation.

    def make_generate_function(self):
        """Returns the function that `generate` calls on a batch of prompts."""
        return functools.partial(
            generate_from_first_tokens, self, self._generate, self._input_names[1]
        )

    @property
    def _input_names(self):
        """The names of the decoder's token ids and of their mask among the inputs."""
        return [f"{self.decoder_prefix}{name}" for name in ("token_ids", "padding_mask")]

    def _generate(self, inputs, stop_token_ids=None):
        """Continues a batch of prompts; see `generate_step`.

        If the sampler draws one token at a time, `continue_tokens` does. The prompts and the caches
        are padded, so that prompts and texts of other lengths need few other programs.
        """
        ids_name, mask_name = self._input_names
        mask = np.asarray(inputs[mask_name]).astype(bool)  # [batch, max_length]
        width, shortest = mask.shape[1], int(mask.sum(1).min())
        self.backbone.check_length(width)
        stops = tuple(() if stop_token_ids is None else stop_token_ids) or None
        if not (self.cached_decoding and draws_in_place(self)) or has_tpu():
            step = compile_once(self, "generate", self.generate_step, of_blocks=True)
            length = bucket(shortest, width) if self.cached_decoding else None
            return step(inputs, stop_token_ids=stops, prefill_length=length)
        cache, encoded = self.read_prompts(inputs, shortest - 1)
        start = np.full([len(mask)], shortest - 1)
        tokens = continue_tokens(
            self,
            inputs[ids_name],
            lengths=mask.sum(1),
            caches=as_variables(cache),
            start=start,
            offset=np.zeros_like(start),
            ends=np.full_like(start, width),
            stops=stops or (),
            steps=width,
            encoded=encoded,
        )
        return {ids_name: tokens, mask_name: written_tokens(tokens, mask, stops)}

    def read_prompts(self, inputs, count):
        """Reads the first tokens of prompts in one compiled call.

        Args:
            inputs: dictionary as in `generate_step`; the mask of the decoder is not read.
            count: int, number of tokens to cache.

        Returns:
            The cache, and a tuple of the arguments that the decoder takes from an encoder.
        """
        ids_name, mask_name = self._input_names
        inputs = {name: x for name, x in inputs.items() if name != mask_name}
        batch, width = inputs[ids_name].shape
        room = room_for(width, batch)
        # [batch, room]
        tokens = tf.pad(tf.cast(inputs[ids_name], tf.int32), [[0, 0], [0, room - width]])

        def read_first(inputs, first, length):
            encoded = self.encode(inputs)
            return self._prefill(inputs[ids_name], first, length, encoded)[1], encoded

        longest = self.backbone.max_sequence_length or room
        if self.decoder_prefix:
            # Heads that attend to an encoder may need as many of its keys as there are queries.
            longest = width
        length = bucket(count + 1, min(room, longest))
        read = compile_once(self, "prompts", read_first, of_blocks=True)
        return read({**inputs, ids_name: tokens}, tf.constant(count + 1), length)

    def states_in_place(self, tokens, caches, position, *encoded):
        """See `rt_keras.models.token_loop`."""
        with compiled_blocks(self.jit_generate):
            return self.backbone.call_in_place(tokens, *encoded, caches, position)

    def generate_step(self, inputs, stop_token_ids=None, sampler=None, prefill_length=None):
        """Continues a batch of prompts.

        With a cache (see `cached_decoding`), prefill reads as many tokens of each row as the
        shortest prompt has. Each decode step then reads one token per row. As long as a row has
        tokens of its prompt left, these are its next tokens. An encoder runs once.

        Args:
            inputs: dictionary as returned by `generate_preprocess` of the model's preprocessor. Its
                entries "token_ids" and "padding_mask", with `decoder_prefix` before their names,
                are int and bool `[batch, max_length]`. The mask is True at the prompts, which are
                left-aligned and have at least one token.
            stop_token_ids: ids that end a sequence. Defaults to None, for no stop tokens.
            sampler: a `keras_hub.samplers.Sampler`. Defaults to the one the model was compiled
                with.
            prefill_length: int, number of positions of prefill, at least the length of the shortest
                prompt. Defaults to None, for that length, which is not static, so XLA cannot
                compile it.

        Returns:
            A dictionary of the same two names: the prompts with the generated tokens, and a mask
            that is True up to the stop token.
        """
        ids_name, mask_name = self._input_names
        prompt = tf.cast(inputs[ids_name], tf.int32)
        mask = tf.cast(inputs[mask_name], tf.bool)
        self.backbone.check_length(prompt.shape[1])
        first, sampler = shortest_prompt(mask), sampler or self.sampler
        encoded = self.encode(inputs)
        if self.cached_decoding:
            hidden, cache = self._prefill(prompt, first, prefill_length, encoded, sampler)
        else:
            hidden, cache = self._decode_known(prompt, first, encoded), ()
        tokens = sampler(
            next=functools.partial(self.next_logits, encoded=encoded),
            prompt=prompt,
            cache=cache,
            index=first,
            mask=mask,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden,
            model=self,
        )
        return {ids_name: tokens, mask_name: written_tokens(tokens, mask, stop_token_ids)}

    def next_logits(self, tokens, cache, index, encoded=()):
        """Computes the logits of the next token, for a sampler.

        Args:
            tokens: int `[batch, max_length]`, of which the first `index` are known.
            cache: the cache of the first `index - 1` tokens; unused without cached decoding.
            index: int scalar.
            encoded: tuple of the arguments that the decoder takes from an encoder. Defaults to
                `()`.

        Returns:
            Logits of the token at `index`, `[batch, vocabulary_size]`; the hidden states that they
            are computed from, `[batch, hidden_dim]`; and the cache with one more position.
        """
        if self.cached_decoding:
            logits, hidden, cache = self.call_with_cache(
                tokens[:, index - 1, None], *encoded, cache, index - 1
            )
            return logits[:, 0], hidden[:, 0], cache
        # [batch, max_length, hidden_dim] -> [batch, hidden_dim]
        hidden = tf.gather(self._decode_known(tokens, index, encoded), index - 1, axis=1)
        return self.token_logits(hidden), hidden, cache

    def encode(self, inputs):
        """Returns what the decoder takes from an encoder, as a tuple; nothing without one."""
        return ()

    def _prefill(self, prompt, first, prefill_length, encoded, sampler=None):
        """Reads prompts but for token `first - 1`, with which the decode steps begin.

        Returns:
            The hidden states of the prompts, `[batch, max_length, hidden_dim]`, and the cache.
        """
        max_length = size(prompt, 1)
        prompt = prompt[:, : first if prefill_length is None else prefill_length]
        hidden, cache = self.prefill(prompt, *encoded, first - 1, max_length)
        # [batch, prefill_length, hidden_dim] -> [batch, max_length, hidden_dim]
        padding = max_length - tf.shape(hidden)[1]
        return tf.pad(hidden, [[0, 0], [0, padding], [0, 0]]), cache

    def _decode_known(self, tokens, count, encoded):
        """Computes the hidden states of sequences of which `count` tokens are known."""
        is_known = tf.broadcast_to(tf.range(tf.shape(tokens)[1]) < count, tf.shape(tokens))
        return self.decode_all(tokens, tf.cast(is_known, tf.int32), *encoded)
