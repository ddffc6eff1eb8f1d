"""The Routing Transformer as a language model."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.models.carried_state import CarriedState, why_no_state
from rt_keras.models.generation import bucket, read_chunks
from rt_keras.models.language_model import LanguageModel
from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone
from rt_keras.models.routing_transformer_causal_lm_preprocessor import (
    RoutingTransformerCausalLMPreprocessor,
)
from rt_keras.ops.blocks import size

# Tokens of a prompt that are read at once. Longer prompts go through the model in chunks, if its
# heads allow for it, so that they take no more memory.
PROMPT_CHUNK = 8192


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerCausalLM(CarriedState, LanguageModel, keras_hub.models.CausalLM):
    """A language model: logits of each next token.

    ```
    logits = backbone(inputs) · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer replaces this product. If the embedding
    is not as wide as the blocks, another dense layer precedes it.

    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerBackbone`.
        preprocessor: a `RoutingTransformerCausalLMPreprocessor`. Defaults to None, for
            inputs of token ids.
        loss_chunk_size: int, number of positions whose logits `fit` and `evaluate` hold at once;
            they are recomputed for the gradient. Defaults to None, all positions of a batch, which
            takes one float per position and token id, and as many for the gradient.
        **kwargs: keyword arguments of `keras_hub.models.CausalLM`, such as `name`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, Keras's default.

    Returns:
        Logits, `[batch, length, vocabulary_size]`.

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

    def hidden_states(self, inputs, training=None):
        """Computes the hidden states that the logits are computed from.

        Args:
            inputs: dictionary as in a call.
            training: bool, whether to apply dropout. Defaults to None.

        Returns:
            `[batch, length, hidden_dim]`.
        """
        return self.backbone(inputs, training=training)

    # Decoding.

    def new_cache(self, batch, max_length):
        """Makes an empty cache for `call_with_cache`.

        Args:
            batch: int or scalar tensor, rows of the cache.
            max_length: int, maximum sequence length.

        Returns:
            The cache, as from `prefill`.
        """
        return self.backbone.new_cache(batch, max_length)

    def prefill(self, token_ids, count, max_length):
        """Runs the model on the first positions of sequences, in parallel, and caches them.

        Args:
            token_ids: int `[batch, length]`.
            count: int scalar, number of positions to cache. Later positions may hold any token.
            max_length: int, maximum sequence length.

        Returns:
            Hidden states, `[batch, length, hidden_dim]`, and the cache: nested dictionaries and
            tuples of tensors with the batch on axis 0, whose sizes depend on `max_length` only
            with `FullHeads` and `StridedHeads`.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        return self.backbone.prefill(token_ids, count, max_length)

    def prompt_cache(self, token_ids, count):
        """The cache of the first tokens of prompts, by one compiled call.

        Args:
            token_ids: int tensor `[batch, max_length]`.
            count: int, how many of the tokens the cache holds.

        Returns:
            The cache, as from `prefill`; nothing if `cached_decoding` is False.
        """
        if not self.cached_decoding:
            return ()

        def read(tokens, count, max_length):
            return self.prefill(tokens, count, max_length)[1]

        compiled = self.compiled_function(
            "prompt",
            lambda: tf.function(read, jit_compile=self.jit_generate, reduce_retracing=True),
        )
        width = token_ids.shape[1]
        return compiled(token_ids[:, : bucket(count + 1, width)], tf.constant(count), width)

    def call_with_cache(self, token_ids, cache, cache_update_index):
        """Runs the model on the next tokens, given the cache of those before them.

        One token at a time, or a long sequence in chunks of any lengths, the outputs are those of
        one pass over everything.

        Args:
            token_ids: int `[batch, length]`.
            cache: cache from `prefill`, `new_cache` or the previous call.
            cache_update_index: int scalar, the position of the first of these tokens, which is the
                number of positions in the cache.

        Returns:
            Logits of the tokens after these, `[batch, length, vocabulary_size]`; the hidden states
            that they come from, `[batch, length, hidden_dim]`; and the cache with these positions
            added.

        Raises:
            ValueError: if `cached_decoding` is False, or the cache belongs to another model or has
                no room.
        """
        hidden, cache = self.backbone.call_with_cache(token_ids, cache, cache_update_index)
        return self.token_logits(hidden), hidden, cache

    def _start(self, prompt, first, prefill_length, encoded, sampler):
        if not self._reads_in_chunks(prefill_length):
            return super()._start(prompt, first, prefill_length, encoded, sampler)
        batch, max_length = size(prompt, 0), size(prompt, 1)
        if isinstance(sampler, keras_hub.samplers.ContrastiveSampler):
            raise ValueError(
                "A ContrastiveSampler compares the states of all tokens of a prompt, which may "
                f"have at most {PROMPT_CHUNK} tokens with it. Received: {max_length} positions"
            )
        # No other sampler reads the states.
        hidden = tf.zeros([batch, max_length, self.backbone.hidden_dim], self.compute_dtype)

        def read(tokens, cache, start, count):
            return self.backbone.call_with_cache(tokens, cache, start, count=count)[1]

        prompt, counts = prompt[:, :prefill_length], tf.fill([batch], first - 1)
        cache = self.new_cache(batch, max_length)
        return hidden, read_chunks(read, prompt, counts, cache, PROMPT_CHUNK)

    def _reads_in_chunks(self, prefill_length):
        """Whether a prompt is so long that it is read chunk by chunk."""
        long = prefill_length is not None and prefill_length > PROMPT_CHUNK
        return long and why_no_state(self.backbone) is None

    def _decoder_states(self, tokens, padding_mask):
        return self.backbone({"token_ids": tokens, "padding_mask": padding_mask}, training=False)
