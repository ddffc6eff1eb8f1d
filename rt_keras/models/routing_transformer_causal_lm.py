"""The Routing Transformer as a language model."""

import functools

import keras
import keras_hub
import tensorflow as tf

from rt_keras.models.chunked_loss import ChunkedLoss
from rt_keras.models.generation import (
    CompiledGeneration,
    make_generate_function,
    pad_length,
    shortest_prompt,
    written_tokens,
)
from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone
from rt_keras.models.routing_transformer_causal_lm_preprocessor import (
    RoutingTransformerCausalLMPreprocessor,
)
from rt_keras.ops.blocks import size


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerCausalLM(
    PublishedPresets, CompiledGeneration, ChunkedLoss, keras_hub.models.CausalLM
):
    """A language model: logits of each next token.

    ```
    logits = backbone(inputs) · token_embeddingᵀ
    ```

    or, where the backbone says that embeddings are not tied, through a dense layer of its own; in
    either case by way of another dense layer where the embedding is of another width.

    Train it with `rt_keras.callbacks.CentroidEMA`, which moves the centroids of its routing heads.

    Args:
        backbone: a `RoutingTransformerBackbone`.
        preprocessor: a `RoutingTransformerCausalLMPreprocessor`, or None to work on token ids.
        loss_chunk_size: how many positions' logits `fit` and `evaluate` hold at once, computing
            them a second time for the gradient. None for all, of the whole batch: one float for
            each position and entry of the vocabulary, and as many for their gradient.
        **kwargs: those of `keras_hub.models.CausalLM`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`, and "padding_mask",
            `[batch, length]`, 0 for padding. With "labels", int `[batch, length]`, among them, the
            model returns for each the cross entropy and the likeliest token,
            `[batch, length, 2]`.

    Returns:
        `[batch, length, vocabulary_size]`.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerBackbone(
    ...     vocabulary_size=258,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ... )
    >>> model = RoutingTransformerCausalLM(backbone)
    >>> ids = keras.ops.ones([1, 40], dtype="int32")
    >>> model({"token_ids": ids, "padding_mask": ids}).shape
    TensorShape([1, 40, 258])
    """

    kind = RoutingTransformerBackbone.kind
    backbone_cls = RoutingTransformerBackbone
    preprocessor_cls = RoutingTransformerCausalLMPreprocessor

    def __init__(self, backbone, preprocessor=None, loss_chunk_size=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_projection, self.output_dense = output_layers(backbone)

        # === Config ===
        # First, as the base class compiles the model.
        self.set_loss_chunk_size(loss_chunk_size)

        # === Functional Model ===
        inputs = backbone.input
        outputs = self.token_logits(backbone(inputs))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def hidden_states(self, inputs, training=None):
        """What logits are computed from, `[batch, length, hidden_dim]`."""
        return self.backbone(inputs, training=training)

    def token_logits(self, hidden):
        """The logits that hidden states `[..., hidden_dim]` stand for."""
        if self.output_projection is not None:
            hidden = self.output_projection(hidden)
        if self.output_dense is not None:
            return self.output_dense(hidden)
        return self.backbone.token_embedding(hidden, reverse=True)

    # Decoding.

    @property
    def cached_decoding(self):
        """Whether generation keeps a cache, so that a token costs the same at every position.

        It does where every output depends on the tokens up to its own alone: with `LocalHeads`,
        `RoutingHeads` of assignment "nearest", `StridedHeads` and `FullHeads` (the last two keep
        all keys). Where a model has other heads, whose members depend on the whole sequence, no
        output can be kept: generation calls the model for each token on all of `max_length`
        positions, those to come as padding, and costs as much as `max_length` parallel passes. With
        "balanced" routing and `HashedHeads` that is the model called on each prefix; members of
        `ClusterStridedHeads`, `RandomHeads` and heads with a `reference_block_size` depend on the
        length as well, and are those of `max_length`.
        """
        return self.backbone.cached_decoding

    def new_cache(self, batch, max_length):
        """The cache of no positions yet, for `call_with_cache`; see `prefill`."""
        cache = {"blocks": self.backbone.new_cache(batch, max_length)}
        if "token_bias" in self.backbone.input:
            cache["token_bias"] = tf.zeros([batch, max_length])
        return cache

    def prefill(self, token_ids, count, max_length, token_bias=None):
        """One parallel pass over a first stretch of positions, and the cache that goes on from it.

        Args:
            token_ids: int `[batch, length]`.
            count: int scalar, how many of the positions the cache is to hold. The others may hold
                anything.
            max_length: how many positions there will be.
            token_bias: `[batch, max_length]`, where a head group takes it; zeros if None.

        Returns:
            Hidden states `[batch, length, hidden_dim]`, and the cache: nested dictionaries and
            tuples of tensors with the batch on axis 0. Their sizes depend on `max_length` only
            for `FullHeads` and `StridedHeads`, and for a token bias.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        cache, length = {}, size(token_ids, 1)
        if "token_bias" in self.backbone.input:
            if token_bias is None:
                token_bias = tf.zeros([size(token_ids, 0), max_length])
            cache["token_bias"] = token_bias
            token_bias = token_bias[:, :length]
        hidden, cache["blocks"] = self.backbone.prefill(token_ids, count, max_length, token_bias)
        return hidden, cache

    def call_with_cache(self, token_ids, cache, cache_update_index):
        """The logits of the token after one more token.

        Args:
            token_ids: int `[batch, 1]`.
            cache: what `prefill`, `new_cache` or the last call gave.
            cache_update_index: int scalar, the position of that token: how many the cache holds.

        Returns:
            Logits `[batch, 1, vocabulary_size]`, the hidden states `[batch, 1, hidden_dim]` that
            they come from, and the cache with this position in it.

        Raises:
            ValueError: if there is more than one token in a row, `cached_decoding` is False, or the
                cache is another model's.
        """
        if token_ids.shape[1] not in (None, 1):
            raise ValueError(
                "call_with_cache takes one token a row, [batch, 1]; prefill takes many. Received: "
                f"token_ids of shape {token_ids.shape}"
            )
        token_bias = cache.get("token_bias")
        if token_bias is not None:
            token_bias = token_bias[:, cache_update_index, None]
        hidden, blocks = self.backbone.call_with_cache(
            token_ids, cache["blocks"], cache_update_index, token_bias
        )
        return self.token_logits(hidden), hidden, {**cache, "blocks": blocks}

    def make_generate_function(self):
        """The compiled function that `generate` calls; see `rt_keras.models.generation`."""
        if self.generate_function is None:
            self.generate_function = make_generate_function(self)
        return self.generate_function

    def generate_step(self, inputs, stop_token_ids=None, sampler=None, prefill_length=None):
        """Continues a batch of prompts.

        With a cache (see `cached_decoding`), one parallel pass takes in as many tokens as the
        shortest prompt has; from there on each step takes one token of every row, and where a
        prompt is longer, the next token is the prompt's.

        Args:
            inputs: dictionary of "token_ids" and "padding_mask", int and bool
                `[batch, max_length]`; prompts stand at the left and have at least one token. Where
                a head group takes it, "token_bias" `[batch, max_length]`; zeros if there is none.
            stop_token_ids: ids that end a sequence, or None.
            sampler: a `keras_hub.samplers.Sampler`. None for the one the model was compiled with.
            prefill_length: int, how many positions the parallel pass has: at least as many as the
                shortest prompt. None for exactly as many, which XLA cannot compile, as it needs to
                know that number.

        Returns:
            A dictionary of "token_ids", with the tokens filled in, and "padding_mask", which ends
            at the stop token.
        """
        prompt = tf.cast(inputs["token_ids"], tf.int32)
        mask = tf.cast(inputs["padding_mask"], tf.bool)
        self.backbone.check_length(prompt.shape[1])
        first = shortest_prompt(mask)
        token_bias = inputs.get("token_bias")
        start = self._start_with_cache if self.cached_decoding else self._start_without_cache
        hidden, cache = start(prompt, first, prefill_length, token_bias)
        tokens = (sampler or self.sampler)(
            next=functools.partial(self.next_logits, token_bias=token_bias),
            prompt=prompt,
            cache=cache,
            index=first,
            mask=mask,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden,
            model=self,
        )
        written = written_tokens(tokens, mask, stop_token_ids)
        return {"token_ids": tokens, "padding_mask": written}

    def next_logits(self, tokens, cache, index, token_bias=None):
        """What a sampler asks for at each step.

        Args:
            tokens: int `[batch, max_length]`, of which the first `index` count.
            cache: the cache of the first `index - 1`; or anything, where there is none.
            index: int scalar.
            token_bias: `[prompts, max_length]`, where there is no cache, which else holds it.

        Returns:
            Logits `[batch, vocabulary_size]` of the token at `index`, the hidden states that they
            come from, and the cache with one position more.
        """
        if self.cached_decoding:
            logits, hidden, cache = self.call_with_cache(
                tokens[:, index - 1, None], cache, index - 1
            )
            return logits[:, 0], hidden[:, 0], cache
        last = tf.gather(self._states(tokens, index, token_bias), index - 1, axis=1)
        return self.token_logits(last), last, cache

    def _start_with_cache(self, prompt, first, prefill_length, token_bias):
        """The prompt's hidden states, and the cache that a sampler goes on from."""
        max_length = size(prompt, 1)
        # The sampler begins with the last token of the shortest prompt.
        hidden, cache = self.prefill(
            prompt[:, : first if prefill_length is None else prefill_length],
            first - 1,
            max_length,
            token_bias,
        )
        return pad_length(hidden, max_length), cache

    def _start_without_cache(self, prompt, first, prefill_length, token_bias):
        """The same where each token needs all the sequence, at its full length."""
        return self._states(prompt, first, token_bias), ()

    def _states(self, tokens, count, token_bias):
        """Hidden states of sequences of which `count` tokens count."""
        known = tf.broadcast_to(tf.range(tf.shape(tokens)[1]) < count, tf.shape(tokens))
        inputs = {"token_ids": tokens, "padding_mask": tf.cast(known, tf.int32)}
        if "token_bias" in self.backbone.input:
            bias = tf.zeros_like(tokens, tf.float32) if token_bias is None else token_bias
            # A beam search has several sequences for each prompt.
            beams = tf.shape(tokens)[0] // tf.shape(bias)[0]
            inputs["token_bias"] = tf.repeat(bias, beams, axis=0)
        return self.backbone(inputs, training=False)

    def get_config(self):
        return {**super().get_config(), "loss_chunk_size": self.loss_chunk_size}


def output_layers(backbone):
    """What leads from hidden states to logits: back to the width of the embedding, and on.

    Returns:
        Two dense layers; None for the first where the width is right already, and for the second
        where the embedding's own weights serve.
    """
    options = {"dtype": backbone.dtype_policy}
    initializer = keras.initializers.get(backbone.block_options["kernel_initializer"])
    projection = dense = None
    if backbone.embedding_dim not in (None, backbone.hidden_dim):
        projection = keras.layers.Dense(
            backbone.embedding_dim,
            kernel_initializer=initializer.clone(),
            name="output_projection",
            **options,
        )
    if not backbone.tie_embeddings:
        dense = keras.layers.Dense(
            backbone.vocabulary_size,
            kernel_initializer=initializer.clone(),
            name="output_dense",
            **options,
        )
    return projection, dense
