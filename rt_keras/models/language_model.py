"""What the language models share: from hidden states to logits, and generation."""

import functools

import tensorflow as tf

from rt_keras.layers.head_group import positive_int
from rt_keras.models.chunked_loss import ChunkedLoss
from rt_keras.models.generation import (
    make_generate_function,
    pad_length,
    shortest_prompt,
    written_tokens,
)
from rt_keras.models.presets import PublishedPresets
from rt_keras.ops.blocks import size


class LanguageModel(PublishedPresets, ChunkedLoss):
    """Mixin of language models, before KerasHub's bases: logits of each next token.

    ```
    logits = hidden_states(inputs) · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer takes the place of their product. If the
    embedding has another width than the blocks, another dense layer comes before it. A subclass has
    `hidden_states(inputs, training)`, and for generation `prefill` and `call_with_cache`, or, where
    heads decode without a cache, `_decoder_states(tokens, padding_mask, *encoded)`. With an encoder
    it has `_encode(inputs)`, the tuple of what those three take of the encoder.
    """

    # What the names of the decoder's inputs begin with.
    decoder_prefix = ""

    def __init__(self, backbone, preprocessor=None, loss_chunk_size=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_projection = self.output_dense = None
        if backbone.embedding_dim not in (None, backbone.hidden_dim):
            self.output_projection = backbone.make_dense(
                backbone.embedding_dim, "output_projection"
            )
        if not backbone.tie_embeddings:
            self.output_dense = backbone.make_dense(backbone.vocabulary_size, "output_dense")

        # === Config ===
        # Before the constructor of the base class, which compiles the model.
        if loss_chunk_size is not None:
            positive_int("loss_chunk_size", loss_chunk_size)
        self.keep_arguments({"loss_chunk_size": loss_chunk_size})

        # === Functional Model ===
        inputs = backbone.input
        outputs = self.token_logits(self.hidden_states(inputs))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def token_logits(self, hidden):
        """The logits of hidden states.

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

    @property
    def cached_decoding(self):
        """Whether generation keeps a cache, so that a token costs the same at every position.

        That is so if no output depends on a later token: with `LocalHeads`, `RoutingHeads` of
        assignment "nearest", `StridedHeads` and `FullHeads` (the last two keep all keys), of which
        `FullHeads` and `LocalHeads` can attend to an encoder. With other heads the keys that a
        query sees depend on the whole sequence: for each token, generation calls the model, or its
        decoder, on all `max_length` positions, later ones as padding, and costs as much as
        `max_length` parallel passes. With "balanced" routing and `HashedHeads` the result is that
        of the model on each prefix; with `ClusterStridedHeads`, `RandomHeads` and heads of a
        dialect it also depends on `max_length`.
        """
        return self.backbone.cached_decoding

    # Generation.

    def make_generate_function(self):
        """The compiled function that `generate` calls; see `rt_keras.models.generation`."""
        return self.compiled_function(
            "generate", lambda: make_generate_function(self, f"{self.decoder_prefix}padding_mask")
        )

    def generate_step(self, inputs, stop_token_ids=None, sampler=None, prefill_length=None):
        """Continues a batch of prompts.

        With a cache (see `cached_decoding`), one parallel pass reads as many tokens as the shortest
        prompt has. From there on each step reads one token of every row; the next token of a row is
        that of its prompt if it is longer. An encoder runs once.

        Args:
            inputs: dictionary as from `generate_preprocess` of the model's preprocessor, but for
                its names "token_ids" and "padding_mask" with `decoder_prefix` before them: int and
                bool `[batch, max_length]`, True at the prompts, which are at the left and have at
                least one token.
            stop_token_ids: ids that end a sequence. Defaults to None, no such ids.
            sampler: a `keras_hub.samplers.Sampler`. Defaults to the one the model was compiled
                with.
            prefill_length: int, number of positions of the parallel pass, at least the length of
                the shortest prompt. Defaults to None, that length, which XLA cannot compile, as it
                is not known before.

        Returns:
            A dictionary of those two names, the prompts with the new tokens, and True up to the
            stop token.
        """
        ids_name, mask_name = (f"{self.decoder_prefix}{x}" for x in ("token_ids", "padding_mask"))
        prompt = tf.cast(inputs[ids_name], tf.int32)
        mask = tf.cast(inputs[mask_name], tf.bool)
        self.backbone.check_length(prompt.shape[1])
        first, sampler = shortest_prompt(mask), sampler or self.sampler
        encoded = self._encode(inputs)
        hidden, cache = self._start(prompt, first, prefill_length, encoded, sampler)
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
            cache: the cache of the first `index - 1`; without cached decoding, anything.
            index: int scalar.
            encoded: tuple of what the decoder takes of an encoder. Defaults to none.

        Returns:
            Logits of the token at `index`, `[batch, vocabulary_size]`; the hidden states that they
            come from, `[batch, hidden_dim]`; and the cache with one position more.
        """
        if self.cached_decoding:
            logits, hidden, cache = self.call_with_cache(
                tokens[:, index - 1, None], *encoded, cache, index - 1
            )
            return logits[:, 0], hidden[:, 0], cache
        last = tf.gather(self._states(tokens, index, encoded), index - 1, axis=1)
        return self.token_logits(last), last, cache

    def _encode(self, inputs):
        return ()

    def _start(self, prompt, first, prefill_length, encoded, sampler):
        """The hidden states of the prompts and the cache, for a sampler."""
        if not self.cached_decoding:
            return self._states(prompt, first, encoded), ()
        max_length = size(prompt, 1)
        prompt = prompt[:, : first if prefill_length is None else prefill_length]
        # The sampler begins with the last token of the shortest prompt.
        hidden, cache = self.prefill(prompt, *encoded, first - 1, max_length)
        return pad_length(hidden, max_length), cache

    def _states(self, tokens, count, encoded):
        """Hidden states of sequences of which `count` tokens are known."""
        known = tf.broadcast_to(tf.range(tf.shape(tokens)[1]) < count, tf.shape(tokens))
        return self._decoder_states(tokens, tf.cast(known, tf.int32), *encoded)
