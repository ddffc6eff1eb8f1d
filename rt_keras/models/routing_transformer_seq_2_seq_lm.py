"""The encoder-decoder as a language model: translation, summaries, answers."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.models.generation import pad_length
from rt_keras.models.language_model import LanguageModel
from rt_keras.models.routing_transformer_seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone
from rt_keras.models.routing_transformer_seq_2_seq_lm_preprocessor import (
    RoutingTransformerSeq2SeqLMPreprocessor,
)
from rt_keras.ops.blocks import size


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqLM(LanguageModel, keras_hub.models.Seq2SeqLM):
    """A language model of one sequence given another: logits of each next token.

    ```
    logits = decoder outputs · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer takes the place of their product. If the
    embedding has another width than the blocks, another dense layer comes before it.

    Train it with `rt_keras.callbacks.CentroidEMA`, which moves the centroids of its routing heads.

    Args:
        backbone: a `RoutingTransformerSeq2SeqBackbone`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`. Defaults to None, to work on
            token ids.
        loss_chunk_size: int, the number of positions whose logits `fit` and `evaluate` hold at
            once; they are computed a second time for the gradient. Defaults to None, all positions
            of a batch: a float for each position and token id, and as many for their gradient.
        **kwargs: keyword arguments of `keras_hub.models.Seq2SeqLM`, such as `name`.

    Call arguments:
        inputs: dictionary as the backbone takes it.
        training: bool, whether dropout is on and statistics of the centroids are collected.
            Defaults to None, Keras's default.

    Returns:
        Logits, `[batch, decoder_length, vocabulary_size]`.

    Source: Roy et al. 2021; for question answering: Krishna et al. 2021, Hurdles to Progress in
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

    def hidden_states(self, inputs, training=None):
        """The states that logits are computed from.

        Args:
            inputs: dictionary as in a call.
            training: bool, whether dropout is on. Defaults to None.

        Returns:
            `[batch, decoder_length, hidden_dim]`.
        """
        return self.backbone(inputs, training=training)["decoder_sequence_output"]

    # Decoding.

    def call_with_cache(self, token_ids, cross_caches, cache, cache_update_index):
        """Runs the decoder on one token, given the cache of those before it.

        Args:
            token_ids: int `[batch, 1]`.
            cross_caches: the cross-attention cache, from `backbone.make_cross_cache`.
            cache: the cache that `backbone.prefill`, `backbone.new_cache` or the last call
                returned.
            cache_update_index: int scalar, the position of the token.

        Returns:
            Logits of the next token, `[batch, 1, vocabulary_size]`; the hidden states that they
            come from, `[batch, 1, hidden_dim]`; and the cache with this position added.
        """
        hidden, cache = self.backbone.call_with_cache(
            token_ids, cross_caches, cache, cache_update_index
        )
        return self.token_logits(hidden), hidden, cache

    def _start(self, inputs, prompt, first, prefill_length, sampler):
        encoder_mask = tf.cast(inputs["encoder_padding_mask"], tf.int32)
        embedded = self.backbone.embed_encoder_tokens(inputs["encoder_token_ids"], encoder_mask)
        encoder_outputs = self.backbone.encode(embedded, encoder_mask, training=False)
        start = self._start_with_cache if self.cached_decoding else self._start_without_cache
        return start(prompt, first, prefill_length, (encoder_outputs, encoder_mask))

    def _start_with_cache(self, prompt, first, prefill_length, encoded):
        """The function of the next logits, the prompt's hidden states and the cache."""
        max_length = size(prompt, 1)
        cross_caches = self.backbone.make_cross_cache(*encoded)
        # The sampler begins with the last token of the shortest prompt.
        hidden, cache = self.backbone.prefill(
            prompt[:, : first if prefill_length is None else prefill_length],
            cross_caches,
            first - 1,
            max_length,
        )

        def next_logits(tokens, cache, index):
            logits, hidden, cache = self.call_with_cache(
                tokens[:, index - 1, None], cross_caches, cache, index - 1
            )
            return logits[:, 0], hidden[:, 0], cache

        return next_logits, pad_length(hidden, max_length), cache

    def _start_without_cache(self, prompt, first, prefill_length, encoded):
        """The same if each token needs the whole sequence, at its full length."""
        outputs, mask = encoded

        def states(tokens, count):
            known = tf.broadcast_to(tf.range(tf.shape(tokens)[1]) < count, tf.shape(tokens))
            # A beam search has several sequences for each that is encoded.
            beams = tf.shape(tokens)[0] // tf.shape(mask)[0]
            return self.backbone.decode(
                tokens,
                tf.cast(known, tf.int32),
                tf.repeat(outputs, beams, axis=0),
                tf.repeat(mask, beams, axis=0),
                training=False,
            )

        def next_logits(tokens, cache, index):
            last = tf.gather(states(tokens, index), index - 1, axis=1)
            return self.token_logits(last), last, cache

        return next_logits, states(prompt, first), ()
