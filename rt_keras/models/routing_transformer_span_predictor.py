"""Routing Transformer span predictor for extractive question answering."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.layers.head_group import positive_int
from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_encoder_backbone import RoutingTransformerEncoderBackbone
from rt_keras.models.routing_transformer_masked_lm import check_encoder
from rt_keras.models.routing_transformer_span_predictor_preprocessor import (
    RoutingTransformerSpanPredictorPreprocessor,
)
from rt_keras.models.training import Training

# The logit of impossible positions, of which two can be added without overflow.
NOWHERE = -1e30


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpanPredictor(PublishedPresets, Training, keras_hub.models.Task):
    """A model that answers questions with a span of a text, given by its start and end.

    ```
    logits of the start, logits of the end = backbone(inputs) W + b
    ```

    Positions outside the context have zero probability.

    Train it with `rt_keras.callbacks.CentroidEMA`, which updates the centroids of routing heads.

    Args:
        backbone: a `RoutingTransformerEncoderBackbone`.
        preprocessor: a `RoutingTransformerSpanPredictorPreprocessor`. Defaults to None, for
            inputs of token ids.
        max_answer_length: int, maximum number of tokens in an answer. Defaults to 128.
        **kwargs: keyword arguments of `keras_hub.models.Task`, such as `name`.

    Call arguments:
        inputs: dictionary of the inputs of the backbone, and "context_mask", bool or int
            `[batch, length]`, 0 outside the context.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits of the start and of the end, `[batch, 2, length]`.

    Raises:
        TypeError: if the backbone is not a `RoutingTransformerEncoderBackbone`.
        ValueError: if `max_answer_length` is less than 1, or if the backbone has fewer token ids
            than the preprocessor.

    Source: Devlin et al. 2019, BERT, section 4.2.

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
    >>> preprocessor = RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 24)
    >>> model = RoutingTransformerSpanPredictor(backbone, preprocessor)
    >>> x = {"question": ["who?"], "context": ["it was Ann"]}
    >>> logits = model(preprocessor(x))
    >>> logits.shape
    TensorShape([1, 2, 24])
    >>> (answer,) = preprocessor.answers(x, best_spans(logits, max_answer_length=8))
    >>> answer in "it was Ann"
    True
    """

    kind = "span"
    backbone_cls = RoutingTransformerEncoderBackbone
    preprocessor_cls = RoutingTransformerSpanPredictorPreprocessor

    def __init__(self, backbone, preprocessor=None, max_answer_length=128, **kwargs):
        check_encoder(backbone, preprocessor)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        # float32 also under mixed precision.
        self.output_dense = backbone.make_dense(2, "logits", dtype="float32")

        # === Config ===
        # Set before calling the base constructor, which compiles the model.
        positive_int("max_answer_length", max_answer_length)
        self.keep_arguments({"max_answer_length": max_answer_length})

        # === Functional Model ===
        context_mask = keras.Input((None,), dtype="int32", name="context_mask")
        inputs = {**backbone.input, "context_mask": context_mask}
        logits = keras.ops.transpose(self.output_dense(backbone(backbone.input)), [0, 2, 1])
        in_context = keras.ops.expand_dims(keras.ops.cast(context_mask, "bool"), 1)
        outputs = keras.ops.where(in_context, logits, NOWHERE)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def compile_arguments(
        self, optimizer="auto", loss="auto", *, weighted_metrics="auto", **kwargs
    ):
        """Adds defaults like those of KerasHub's tasks to the arguments of Keras's `compile`.

        Args:
            optimizer: optimizer, as for Keras's `compile`. Defaults to `"auto"`, Adam with a
                learning rate of 5e-5.
            loss: loss. Defaults to `"auto"`, a `SparseCategoricalCrossentropy` from logits.
            weighted_metrics: list of metrics. Defaults to `"auto"`, the accuracy of starts and
                ends.
            **kwargs: other arguments of Keras's `compile`.

        Returns:
            A tuple of positional arguments and a dictionary of keyword arguments.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(5e-5)
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if weighted_metrics == "auto":
            weighted_metrics = [keras.metrics.SparseCategoricalAccuracy()]
        return (optimizer, loss), {**kwargs, "weighted_metrics": weighted_metrics}

    def answer(self, x, batch_size=8):
        """Answers questions.

        Args:
            x: dictionary of "question" and "context", lists of strings.
            batch_size: int, number of questions to answer at once. Defaults to 8.

        Returns:
            List of strings, each a part of its context.

        Raises:
            ValueError: if the model has no preprocessor.
        """
        if self.preprocessor is None:
            raise ValueError("answer() needs a preprocessor. Received: preprocessor=None")
        texts = {name: tf.convert_to_tensor(x[name]) for name in ("question", "context")}
        logits = self.predict(texts, batch_size=batch_size, verbose=0)
        return self.preprocessor.answers(texts, best_spans(logits, self.max_answer_length))


def best_spans(logits, max_answer_length):
    """Returns the most likely spans that do not end before they start and are not too long.

    Args:
        logits: float32 `[batch, 2, length]`, as from `RoutingTransformerSpanPredictor`.
        max_answer_length: int, maximum number of tokens in a span.

    Returns:
        int32 `[batch, 2]`, the positions of the first and of the last token.

    >>> best_spans([[[0.0, 3.0, 2.0, 0.0], [9.0, 0.0, 0.0, 1.0]]], max_answer_length=2).numpy()
    array([[0, 0]], dtype=int32)
    >>> best_spans([[[0.0, 3.0, 2.0, 0.0], [0.0, 0.0, 0.0, 1.0]]], max_answer_length=2).numpy()
    array([[1, 1]], dtype=int32)
    """
    start, end = tf.unstack(tf.convert_to_tensor(logits, tf.float32), axis=1)
    longest = min(max_answer_length, start.shape[1])
    # For each end, the best of its possible starts.
    padded = tf.pad(start, [[0, 0], [longest - 1, 0]], constant_values=NOWHERE)
    best = tf.nn.max_pool1d(padded[..., None], longest, strides=1, padding="VALID")[..., 0]
    last = tf.argmax(best + end, axis=1, output_type=tf.int32)[:, None]
    places = tf.range(start.shape[1])
    allowed = (places <= last) & (places > last - longest)
    first = tf.argmax(tf.where(allowed, start, 2 * NOWHERE), axis=1, output_type=tf.int32)
    return tf.concat([first[:, None], last], axis=1)
