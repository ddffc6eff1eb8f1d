"""Encoder-decoder language model for translation, summarization and question answering."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.models.language_model import LanguageModel
from rt_keras.models.seq_2_seq.seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone
from rt_keras.models.seq_2_seq.seq_2_seq_lm_preprocessor import (
    RoutingTransformerSeq2SeqLMPreprocessor,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqLM(LanguageModel, keras_hub.models.Seq2SeqLM):
    """A language model that computes logits of each next token given another sequence.

    ```
    logits = decoder outputs · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer replaces this product. If the embedding
    is not as wide as the blocks, another dense layer precedes it.

    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerSeq2SeqBackbone`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`. Defaults to None, for inputs of
            token ids.
        loss_chunk_size: int, number of positions whose logits `fit` and `evaluate` hold at once;
            they are recomputed for the gradient. Defaults to None, for all positions of a batch,
            which takes one float per position and token id, and as many for the gradient.
        **kwargs: keyword arguments of `keras_hub.models.Seq2SeqLM`, such as `name`.

    Call arguments:
        inputs: dictionary of the inputs of the backbone.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, `[batch, decoder_length, vocabulary_size]`.

    Raises:
        ValueError: if `loss_chunk_size` is not a positive integer.

    Source: Roy et al. 2021; for question answering, Krishna et al. 2021, Hurdles to Progress in
    Long-form Question Answering, and Petroni et al. 2021.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerSeq2SeqBackbone(
    ...     vocabulary_size=258,
    ...     num_encoder_layers=1,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     encoder_head_groups=[RoutingHeads(4, 4, window_size=16)],
    ...     head_groups=[LocalHeads(4, block_size=16)],
    ...     cross_head_groups=[RoutingHeads(4, 4, window_size=16, assignment="balanced")],
    ... )
    >>> model = RoutingTransformerSeq2SeqLM(backbone)
    >>> ids = keras.ops.ones([1, 20], dtype="int32")
    >>> model({name: ids for name in backbone.input}).shape
    TensorShape([1, 20, 258])
    """

    kind = RoutingTransformerSeq2SeqBackbone.kind
    backbone_cls = RoutingTransformerSeq2SeqBackbone
    preprocessor_cls = RoutingTransformerSeq2SeqLMPreprocessor
    decoder_prefix = "decoder_"

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
            `[batch, decoder_length, hidden_dim]`.
        """
        return self.backbone(inputs, training=training)["decoder_sequence_output"]

    # Decoding.

    def call_with_cache(self, token_ids, cross_caches, cache, cache_update_index):
        """Runs the decoder on one token, given the cache of the preceding ones.

        Args:
            token_ids: int `[batch, 1]`.
            cross_caches: the cross-attention cache, from `backbone.make_cross_cache`.
            cache: cache from `backbone.prefill`, `backbone.new_cache` or the previous call.
            cache_update_index: int scalar, position of the token.

        Returns:
            Logits of the next token, `[batch, 1, vocabulary_size]`; the hidden states that they are
            computed from, `[batch, 1, hidden_dim]`; and the cache with this position added.
        """
        hidden, cache = self.backbone.call_with_cache(
            token_ids, cross_caches, cache, cache_update_index
        )
        return self.token_logits(hidden), hidden, cache

    def prefill(self, token_ids, cross_caches, count, max_length):
        """Runs the decoder on the first positions of sequences and fills a cache.

        Args:
            token_ids, cross_caches, count, max_length: see the backbone's `prefill`.

        Returns:
            Hidden states, `[batch, length, hidden_dim]`, and the cache.
        """
        return self.backbone.prefill(token_ids, cross_caches, count, max_length)

    def encode(self, inputs):
        """Returns the cross-attention cache; without a cache, the encoder's outputs and mask."""
        mask = tf.cast(inputs["encoder_padding_mask"], tf.int32)
        embedded = self.backbone.embed_encoder_tokens(inputs["encoder_token_ids"], mask)
        outputs = self.backbone.encode(embedded, mask, training=False)
        if self.cached_decoding:
            return (self.backbone.make_cross_cache(outputs, mask),)
        return outputs, mask

    def decode_all(self, tokens, padding_mask, outputs, mask):
        """See `LanguageModel`."""
        # Beam search has several sequences for each encoded one: [batch, ...] -> [rows, ...]
        beams = tf.shape(tokens)[0] // tf.shape(mask)[0]
        outputs, mask = (tf.repeat(x, beams, axis=0) for x in (outputs, mask))
        return self.backbone.decode(tokens, padding_mask, outputs, mask, training=False)
