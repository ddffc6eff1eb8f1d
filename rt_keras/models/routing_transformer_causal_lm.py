"""The Routing Transformer as a language model."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone
from rt_keras.models.routing_transformer_causal_lm_preprocessor import (
    RoutingTransformerCausalLMPreprocessor,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerCausalLM(PublishedPresets, keras_hub.models.CausalLM):
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
        **kwargs: those of `keras_hub.models.CausalLM`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`, and "padding_mask",
            `[batch, length]`, 0 for padding.

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

    backbone_cls = RoutingTransformerBackbone
    preprocessor_cls = RoutingTransformerCausalLMPreprocessor

    def __init__(self, backbone, preprocessor=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_projection, self.output_dense = output_layers(backbone)

        # === Functional Model ===
        inputs = backbone.input
        outputs = self.token_logits(backbone(inputs))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def token_logits(self, hidden):
        """The logits that hidden states `[..., hidden_dim]` stand for."""
        if self.output_projection is not None:
            hidden = self.output_projection(hidden)
        if self.output_dense is not None:
            return self.output_dense(hidden)
        return self.backbone.token_embedding(hidden, reverse=True)

    def generate_step(self, inputs, stop_token_ids=None):
        """Continues a batch of prompts, recomputing the sequence for each token.

        Args:
            inputs: dictionary of "token_ids" and "padding_mask", int and bool
                `[batch, max_length]`; prompts stand at the left and have at least one token.
            stop_token_ids: ids that end a sequence, or None.

        Returns:
            A dictionary of the same, with the tokens filled in; the mask ends at the stop token.
        """
        prompt = tf.cast(inputs["token_ids"], tf.int32)
        mask = tf.cast(inputs["padding_mask"], tf.bool)

        def next_logits(tokens, cache, index):
            known = tf.broadcast_to(tf.range(tf.shape(tokens)[1]) < index, tf.shape(tokens))
            hidden = self.backbone({"token_ids": tokens, "padding_mask": tf.cast(known, tf.int32)})
            last = tf.gather(hidden, index - 1, axis=1)
            return self.token_logits(last), last, cache

        first = tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), axis=-1))
        tokens = self.sampler(
            next=next_logits,
            prompt=prompt,
            cache=(),
            index=first,
            mask=mask,
            stop_token_ids=stop_token_ids,
            hidden_states=None,
            model=self,
        )
        written = written_tokens(tokens, mask, stop_token_ids)
        return {"token_ids": tokens, "padding_mask": written}


def written_tokens(tokens, prompt_mask, stop_token_ids=None):
    """Which tokens count: all up to the first stop token behind the prompt.

    Args:
        tokens: int `[batch, length]`.
        prompt_mask: bool `[batch, length]`, True where the prompt is.
        stop_token_ids: ids that end a sequence, or None.

    Returns:
        bool `[batch, length]`.
    """
    if stop_token_ids is None:
        return tf.ones_like(prompt_mask)
    stops = tf.reduce_any(tokens[..., None] == tf.constant(list(stop_token_ids)), axis=-1)
    stops = tf.cast(stops & ~prompt_mask, tf.int32)
    return tf.cumsum(stops, axis=-1, exclusive=True) == 0


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
