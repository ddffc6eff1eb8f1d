"""Routing Transformer text classifier."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.keys import check, one_of
from rt_keras.layers.head_group import positive_int
from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_encoder_backbone import RoutingTransformerEncoderBackbone
from rt_keras.models.routing_transformer_masked_lm import check_encoder
from rt_keras.models.routing_transformer_text_classifier_preprocessor import (
    RoutingTransformerTextClassifierPreprocessor,
)
from rt_keras.models.training import Training


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerTextClassifier(PublishedPresets, Training, keras_hub.models.TextClassifier):
    """A classifier of texts or pairs of texts that computes logits of the classes.

    ```
    h = mean of backbone(inputs) over all positions except padding, or its first position
    logits = dropout(tanh(dropout(h) W + b)) V + c
    ```

    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerEncoderBackbone`.
        num_classes: int, number of classes.
        preprocessor: a `RoutingTransformerTextClassifierPreprocessor`. Defaults to None, for
            inputs of token ids.
        pooling: string, `"mean"` for the mean over all positions, or `"first"` for the first
            position, which in one block sees only the keys that its heads reach. Defaults to
            `"mean"`.
        dropout: float, dropout rate of the head. Defaults to 0.0.
        **kwargs: keyword arguments of `keras_hub.models.TextClassifier`, such as `name`.

    Call arguments:
        inputs: dictionary of the inputs of the backbone.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, `[batch, num_classes]`.

    Raises:
        TypeError: if the backbone is not a `RoutingTransformerEncoderBackbone`.
        ValueError: if an argument is out of range, or if the backbone has fewer token ids than the
            preprocessor.

    Source: Devlin et al. 2019, BERT, section 4.1.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerEncoderBackbone(
    ...     vocabulary_size=259,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ...     sinusoidal_positions=True,
    ... )
    >>> preprocessor = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 40)
    >>> model = RoutingTransformerTextClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    >>> model(preprocessor(["a text", "another one"])).shape
    TensorShape([2, 3])
    """

    kind = "text_classifier"
    backbone_cls = RoutingTransformerEncoderBackbone
    preprocessor_cls = RoutingTransformerTextClassifierPreprocessor

    def __init__(
        self,
        backbone,
        num_classes,
        preprocessor=None,
        pooling="mean",
        dropout=0.0,
        **kwargs,
    ):
        check_encoder(backbone, preprocessor)
        check("pooling", pooling, one_of("mean", "first"))

        positive_int("num_classes", num_classes)
        # Set before calling the base constructor, which compiles the model.
        self.keep_arguments(locals(), leave=["backbone", "preprocessor"])

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.pooler = keras.layers.GlobalAveragePooling1D(
            dtype=backbone.dtype_policy, name="pooler"
        )
        self.pooled_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="pooled_dropout"
        )
        self.pooled_dense = backbone.make_dense(backbone.hidden_dim, "pooled_dense")
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="output_dropout"
        )
        # float32 also under mixed precision.
        self.output_dense = backbone.make_dense(num_classes, "logits", dtype="float32")

        # === Functional Model ===
        inputs = backbone.input
        x = backbone(inputs)
        x = self.pooler(x, mask=inputs["padding_mask"]) if pooling == "mean" else x[:, 0]
        x = keras.ops.tanh(self.pooled_dense(self.pooled_dropout(x)))
        outputs = self.output_dense(self.output_dropout(x))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        """Checks the labels of `fit` and `evaluate` and applies the preprocessor."""
        if y is not None:
            # The loss is not defined for other labels.
            y, most = tf.convert_to_tensor(y), self.num_classes - 1
            message = f"labels must be from 0 to {most}, the number of classes minus 1"
            tf.debugging.assert_non_negative(y, message)
            tf.debugging.assert_less_equal(y, tf.cast(most, y.dtype), message)
        return super().preprocess_samples(x, y, sample_weight)
