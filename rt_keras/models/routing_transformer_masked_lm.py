"""Routing Transformer masked language model."""

import keras
import keras_hub

from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_encoder_backbone import RoutingTransformerEncoderBackbone
from rt_keras.models.routing_transformer_masked_lm_preprocessor import (
    RoutingTransformerMaskedLMPreprocessor,
)
from rt_keras.models.training import Training


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerMaskedLM(PublishedPresets, Training, keras_hub.models.MaskedLM):
    """A masked language model that computes logits of masked tokens.

    ```
    h = LN(gelu(backbone(inputs)[mask_positions] W + b))
    logits = h · token_embeddingᵀ + c
    ```

    If the backbone does not tie embeddings, the head has a separate output matrix.

    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerEncoderBackbone`, with one more token id than the tokenizer,
            for the mask.
        preprocessor: a `RoutingTransformerMaskedLMPreprocessor`. Defaults to None, for inputs of
            token ids.
        **kwargs: keyword arguments of `keras_hub.models.MaskedLM`, such as `name`.

    Call arguments:
        inputs: dictionary of the inputs of the backbone, and "mask_positions", int
            `[batch, masks]`, the positions of the tokens to predict.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, `[batch, masks, vocabulary_size]`.

    Raises:
        TypeError: if the backbone is not a `RoutingTransformerEncoderBackbone`.
        ValueError: if the backbone has too few token ids for the preprocessor.

    Source: Devlin et al. 2019, BERT, section 3.1.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> preprocessor = RoutingTransformerMaskedLMPreprocessor(ByteTokenizer(), sequence_length=40)
    >>> backbone = RoutingTransformerEncoderBackbone(
    ...     vocabulary_size=preprocessor.vocabulary_size,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ...     sinusoidal_positions=True,
    ... )
    >>> model = RoutingTransformerMaskedLM(backbone, preprocessor)
    >>> inputs, labels, weights = preprocessor(["a text of some twenty bytes"])
    >>> model(inputs).shape
    TensorShape([1, 6, 259])
    """

    kind = "masked_lm"
    backbone_cls = RoutingTransformerEncoderBackbone
    preprocessor_cls = RoutingTransformerMaskedLMPreprocessor

    def __init__(self, backbone, preprocessor=None, **kwargs):
        check_encoder(backbone, preprocessor, more=1)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        options = backbone.block_options
        self.masked_lm_head = keras_hub.layers.MaskedLMHead(
            vocabulary_size=backbone.vocabulary_size,
            token_embedding=backbone.token_embedding if backbone.tie_embeddings else None,
            intermediate_activation="gelu",
            layer_norm_epsilon=options["layer_norm_epsilon"],
            kernel_initializer=keras.initializers.get(options["kernel_initializer"]).clone(),
            dtype=backbone.dtype_policy,
            name="masked_lm_head",
        )

        # === Functional Model ===
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = {**backbone.input, "mask_positions": positions}
        outputs = self.masked_lm_head(backbone(backbone.input), positions)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)


def check_encoder(backbone, preprocessor, more=0):
    """Raises an error if a backbone does not fit a task with bidirectional attention.

    Args:
        backbone: the backbone, which must be a `RoutingTransformerEncoderBackbone`.
        preprocessor: the task's preprocessor, or None.
        more: int, number of token ids beyond those of the tokenizer. Defaults to 0.
    """
    if not isinstance(backbone, RoutingTransformerEncoderBackbone):
        raise TypeError(
            "backbone must be a RoutingTransformerEncoderBackbone, which has bidirectional "
            f"attention. Received: a {type(backbone).__name__}"
        )
    if preprocessor is None or not preprocessor.tokenizer.is_loaded:
        return
    token_ids = preprocessor.tokenizer.vocabulary_size() + more
    if backbone.vocabulary_size < token_ids:
        raise ValueError(
            f"backbone must have at least the {token_ids} token ids of the preprocessor. Received: "
            f"vocabulary_size={backbone.vocabulary_size}"
        )
