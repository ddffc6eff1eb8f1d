"""The encoder-decoder as a language model: translation, summaries, answers."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.models.generation import written_tokens
from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_causal_lm import RoutingTransformerCausalLM, output_layers
from rt_keras.models.routing_transformer_seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone
from rt_keras.models.routing_transformer_seq_2_seq_lm_preprocessor import (
    RoutingTransformerSeq2SeqLMPreprocessor,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqLM(PublishedPresets, keras_hub.models.Seq2SeqLM):
    """A language model of one sequence given another: logits of each next token.

    ```
    logits = decoder outputs · token_embeddingᵀ
    ```

    or through a dense layer of its own; as in `RoutingTransformerCausalLM`. Train it with
    `rt_keras.callbacks.CentroidEMA`, which moves the centroids of its routing heads.

    Args:
        backbone: a `RoutingTransformerSeq2SeqBackbone`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`, or None to work on token ids.
        **kwargs: those of `keras_hub.models.Seq2SeqLM`.

    Call arguments:
        inputs: dictionary as the backbone takes it.

    Returns:
        `[batch, decoder_length, vocabulary_size]`.

    Source: Roy et al. 2021; Petroni et al. 2021 and Krishna et al. 2021, Hurdles to Progress in
    Long-form Question Answering, for the model of questions and answers.

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

    backbone_cls = RoutingTransformerSeq2SeqBackbone
    preprocessor_cls = RoutingTransformerSeq2SeqLMPreprocessor

    def __init__(self, backbone, preprocessor=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_projection, self.output_dense = output_layers(backbone)

        # === Functional Model ===
        inputs = backbone.input
        outputs = self.token_logits(backbone(inputs)["decoder_sequence_output"])
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    token_logits = RoutingTransformerCausalLM.token_logits

    def generate_step(self, inputs, stop_token_ids=None):
        """Continues a batch of decoder prompts; the encoder runs once.

        Args:
            inputs: dictionary as `RoutingTransformerSeq2SeqLMPreprocessor.generate_preprocess`
                gives it; prompts stand at the left and have at least one token.
            stop_token_ids: ids that end a sequence, or None.

        Returns:
            A dictionary of "decoder_token_ids", with the tokens filled in, and
            "decoder_padding_mask", which ends at the stop token.
        """
        backbone = self.backbone
        prompt = tf.cast(inputs["decoder_token_ids"], tf.int32)
        mask = tf.cast(inputs["decoder_padding_mask"], tf.bool)
        encoder_mask = tf.cast(inputs["encoder_padding_mask"], tf.int32)
        embedded = backbone.embed_encoder_tokens(inputs["encoder_token_ids"], encoder_mask)
        encoder_outputs = backbone.encode(embedded, encoder_mask)

        def next_logits(tokens, cache, index):
            repeats = tf.shape(tokens)[0] // tf.shape(encoder_mask)[0]
            known = tf.broadcast_to(tf.range(tf.shape(tokens)[1]) < index, tf.shape(tokens))
            hidden = backbone.decode(
                tokens,
                tf.cast(known, tf.int32),
                # A beam search has several sequences for each that is encoded.
                tf.repeat(encoder_outputs, repeats, axis=0),
                tf.repeat(encoder_mask, repeats, axis=0),
            )
            last = tf.gather(hidden, index - 1, axis=1)
            return self.token_logits(last), last, cache

        tokens = self.sampler(
            next=next_logits,
            prompt=prompt,
            cache=(),
            index=tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), axis=-1)),
            mask=mask,
            stop_token_ids=stop_token_ids,
            hidden_states=None,
            model=self,
        )
        return {
            "decoder_token_ids": tokens,
            "decoder_padding_mask": written_tokens(tokens, mask, stop_token_ids),
        }
