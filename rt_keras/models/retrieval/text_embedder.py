"""Routing Transformer text embedder."""

import keras
import keras_hub

from rt_keras.arguments import check, one_of
from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.models.compatible_parts import check_backbone
from rt_keras.models.presets import Loadable
from rt_keras.models.retrieval.contrastive import Contrastive
from rt_keras.models.retrieval.encoder_backbone import RoutingTransformerEncoderBackbone
from rt_keras.models.retrieval.text_embedder_preprocessor import (
    RoutingTransformerTextEmbedderPreprocessor,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerTextEmbedder(Loadable, Contrastive, keras_hub.models.TextEmbedder):
    """A model that computes an embedding of a text, for retrieval.

    ```
    h = mean of backbone(inputs) over all positions except padding, or its first position
    embedding = normalize(h W)
    ```

    Questions and passages have the same weights. `fit` trains them on batches of questions and
    their passages; see `pair_inputs` of `rt_keras.models.retrieval.contrastive` for its inputs.
    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerEncoderBackbone`.
        preprocessor: a `RoutingTransformerTextEmbedderPreprocessor`. Defaults to None, for inputs
            of token ids.
        pooling: string, `"mean"` for the mean over all positions, or `"first"` for the first
            position. Defaults to `"mean"`.
        projection_dim: int, number of features of an embedding. Defaults to None, for those of the
            backbone, without a projection.
        temperature: float, divisor of the similarities in the loss. Defaults to 0.05.
        question_length: int, number of tokens at which questions are truncated. Defaults to None,
            for the preprocessor's `sequence_length`.
        **kwargs: keyword arguments of `keras_hub.models.TextEmbedder`, such as `name`.

    Call arguments:
        inputs: dictionary of the inputs of the backbone; or of "question" and "passages", as
            described in `rt_keras.models.retrieval.contrastive.Contrastive`.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Embeddings of length 1, float32 `[batch, embedding_dim]`.

    Raises:
        TypeError: if the backbone is not a `RoutingTransformerEncoderBackbone`.
        ValueError: if an argument is out of range, or if the backbone has fewer token ids than the
            preprocessor.

    Source: Krishna et al. 2021, Hurdles to Progress in Long-form Question Answering, section 2.1.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerEncoderBackbone(
    ...     vocabulary_size=258,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ...     sinusoidal_positions=True,
    ... )
    >>> preprocessor = RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 40)
    >>> model = RoutingTransformerTextEmbedder(backbone, preprocessor, projection_dim=16)
    >>> model.embed_texts(["a text", "another one"]).shape
    (2, 16)
    """

    kind = "retriever"
    backbone_cls = RoutingTransformerEncoderBackbone
    preprocessor_cls = RoutingTransformerTextEmbedderPreprocessor

    def __init__(
        self,
        backbone,
        preprocessor=None,
        pooling="mean",
        projection_dim=None,
        temperature=0.05,
        question_length=None,
        **kwargs,
    ):
        check_backbone(backbone, self.backbone_cls, preprocessor)
        check("pooling", pooling, one_of("mean", "first"))
        positive_int_or_none("projection_dim", projection_dim)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.pooler = keras.layers.GlobalAveragePooling1D(
            dtype=backbone.dtype_policy, name="pooler"
        )
        self.projection = None
        if projection_dim is not None:
            self.projection = backbone.make_dense(projection_dim, "projection")
        # float32 also under mixed precision.
        self.normalization = keras.layers.UnitNormalization(dtype="float32", name="normalization")

        # === Functional Model ===
        inputs = backbone.input
        x = backbone(inputs)  # [batch, length, hidden_dim]
        # [batch, hidden_dim]
        x = self.pooler(x, mask=inputs["padding_mask"]) if pooling == "mean" else x[:, 0]
        if self.projection is not None:
            x = self.projection(x)
        super().__init__(
            inputs=inputs,
            outputs=self.normalization(x),
            temperature=temperature,
            question_length=question_length,
            **kwargs,
        )

        # === Config ===
        self.pooling, self.projection_dim = pooling, projection_dim

    def get_config(self):
        options = {"pooling": self.pooling, "projection_dim": self.projection_dim}
        return {**super().get_config(), **options}
