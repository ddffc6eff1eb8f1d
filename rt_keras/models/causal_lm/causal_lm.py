"""Routing Transformer language model."""

import functools

import keras
import keras_hub
import tensorflow as tf

from rt_keras.layers.block_layers import normalized
from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone
from rt_keras.models.causal_lm.causal_lm_preprocessor import (
    RoutingTransformerCausalLMPreprocessor,
)
from rt_keras.models.generation import as_tensor, read_chunks
from rt_keras.models.language_model import LanguageModel
from rt_keras.models.scores import Scores
from rt_keras.models.stateful import Stateful, why_not_stateful
from rt_keras.ops.blocks import size

# Number of tokens in a chunk of the chunked prefill, which bounds memory for longer prompts if the
# heads support it.
PROMPT_CHUNK = 8192


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerCausalLM(Stateful, Scores, LanguageModel, keras_hub.models.CausalLM):
    """A causal language model that computes logits of each next token.

    ```
    logits = backbone(inputs) · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer replaces this product. If the embedding
    is not as wide as the blocks, another dense layer precedes it.

    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerBackbone`.
        preprocessor: a `RoutingTransformerCausalLMPreprocessor`. Defaults to None, for inputs of
            token ids.
        loss_chunk_size: int, number of positions whose logits `fit` and `evaluate` hold at once;
            they are recomputed for the gradient. Defaults to None, for all positions of a batch,
            which takes one float per position and token id, and as many for the gradient.
        **kwargs: keyword arguments of `keras_hub.models.CausalLM`, such as `name`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding. Optional "segment_ids" and "positions" are those of
            `RoutingTransformerBackbone`, for documents that share a row.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, `[batch, length, vocabulary_size]`.

    Raises:
        ValueError: if `loss_chunk_size` is not a positive integer.

    Source: Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers.

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
        self.make_output_layers()

        # === Config ===
        # Before the base constructor, which compiles the model.
        self.loss_chunk_size = positive_int_or_none("loss_chunk_size", loss_chunk_size)

        # === Functional Model ===
        outputs = self.token_logits(self.hidden_states(backbone.input))
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def hidden_states(self, inputs, training=None):
        """Computes the hidden states that the logits are computed from.

        Args:
            inputs: dictionary as in a call.
            training: bool, whether to apply dropout. Defaults to None.

        Returns:
            `[batch, length, hidden_dim]`.
        """
        return self.backbone(inputs, training=training)

    def embedded(self, token_ids):
        """See `Scores`."""
        return self.backbone.embedding(token_ids)

    def blocks(self, padding_mask):
        """See `Scores`."""
        masks = {"padding_mask": padding_mask, "use_causal_mask": True}
        return [functools.partial(block, **masks) for block in self.backbone.transformer_blocks]

    def normalized(self, x):
        """See `Scores`."""
        return normalized(self.backbone.layer_norm, x)

    # Decoding.

    def new_cache(self, batch, max_length):
        """Creates an empty cache for `call_with_cache`.

        Args:
            batch: int or scalar tensor, batch size.
            max_length: int, maximum sequence length.

        Returns:
            The cache, as from `prefill`.
        """
        return self.backbone.new_cache(batch, max_length)

    def prefill(self, token_ids, count, max_length):
        """Runs the model on the first positions of sequences, in parallel, and fills a cache.

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
        """Computes the cache of the first tokens of prompts in one compiled call.

        Args:
            token_ids: int tensor `[batch, max_length]`.
            count: int, number of tokens to cache.

        Returns:
            The cache, as from `prefill`; `()` if `cached_decoding` is False.
        """
        return self.read_prompts({"token_ids": token_ids}, count)[0] if self.cached_decoding else ()

    def call_with_cache(self, token_ids, cache, cache_update_index):
        """Runs the model on the next tokens, given the cache of the preceding ones.

        The tokens can be read one at a time or in chunks of any length. The outputs are those of a
        single pass over the whole sequence.

        Args:
            token_ids: int `[batch, length]`.
            cache: cache from `prefill`, `new_cache` or the previous call.
            cache_update_index: int scalar, position of the first of these tokens, which equals the
                number of positions in the cache.

        Returns:
            Logits of each next token, `[batch, length, vocabulary_size]`; the hidden states that
            they are computed from, `[batch, length, hidden_dim]`; and the cache with these
            positions added.

        Raises:
            ValueError: if `cached_decoding` is False, or if the cache belongs to another model or
                is full.
        """
        token_ids = as_tensor("token_ids", token_ids, [None, None])
        hidden, cache = self.backbone.call_with_cache(token_ids, cache, cache_update_index)
        return self.token_logits(hidden), hidden, cache

    def decode_all(self, tokens, padding_mask):
        """See `LanguageModel`."""
        return self.backbone({"token_ids": tokens, "padding_mask": padding_mask}, training=False)

    def _prefill(self, prompt, first, prefill_length, encoded, sampler=None):
        is_long = prefill_length is not None and prefill_length > PROMPT_CHUNK
        if not is_long or why_not_stateful(self.backbone) is not None:
            return super()._prefill(prompt, first, prefill_length, encoded, sampler)
        batch, max_length = size(prompt, 0), size(prompt, 1)
        if isinstance(sampler, keras_hub.samplers.ContrastiveSampler):
            raise ValueError(
                "A ContrastiveSampler compares the hidden states of all tokens, so a prompt must "
                f"have at most {PROMPT_CHUNK} tokens. Received: {max_length} positions"
            )

        def read(tokens, cache, start, count):
            return self.backbone.call_with_cache(tokens, cache, start, count=count)[1]

        prompt, counts = prompt[:, :prefill_length], tf.fill([batch], first - 1)
        cache = read_chunks(read, prompt, counts, self.new_cache(batch, max_length), PROMPT_CHUNK)
        # No other sampler reads the hidden states.
        hidden = tf.zeros([batch, max_length, self.backbone.hidden_dim], self.compute_dtype)
        return hidden, cache
