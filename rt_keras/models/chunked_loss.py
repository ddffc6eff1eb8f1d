"""Training a language model on a large vocabulary without all the logits at once."""

import keras
import tensorflow as tf

from rt_keras.models.training import ModelCall, Training
from rt_keras.ops.chunks import LOGITS_AT_ONCE
from rt_keras.ops.cross_entropy import chunked_cross_entropy


class ChunkedLoss(Training):
    """Mixin of language models, before KerasHub's bases: `loss_chunk_size`.

    With it, `fit` and `evaluate` score no logits. A step reads, for each token, its cross entropy
    and the most likely token, with losses and metrics of those two. The rest of a step is the same.
    A subclass has `hidden_states(inputs, training)`.
    """

    # Positions whose logits are computed at once in training; None for all of them.
    loss_chunk_size = None

    def compile_arguments(
        self, optimizer="auto", loss="auto", *, weighted_metrics="auto", **kwargs
    ):
        """The arguments of KerasHub's `compile`, with losses and metrics of the scores of tokens.

        With `loss_chunk_size` there are no logits for other losses than
        `SparseCategoricalCrossentropy`, and for other metrics than that and accuracy.

        Args:
            optimizer: optimizer, as for KerasHub's `compile`. Defaults to `"auto"`.
            loss: loss. Defaults to `"auto"`, a `SparseCategoricalCrossentropy` from logits.
            weighted_metrics: list of metrics. Defaults to `"auto"`, the accuracy.
            **kwargs: other arguments of KerasHub's `compile`.

        Returns:
            A tuple and a dictionary.

        Raises:
            ValueError: if `loss_chunk_size` does not go with a loss or a metric.
        """
        if self.loss_chunk_size is not None:
            loss = _token_loss(loss)
            weighted_metrics = _token_metrics(weighted_metrics)
            kwargs["metrics"] = _token_metrics(kwargs.get("metrics"))
        return (optimizer, loss), {**kwargs, "weighted_metrics": weighted_metrics}

    def step_outputs(self, x, y, training):
        if self.loss_chunk_size is None:
            return super().step_outputs(x, y, training)

        def scores(x, y, training):
            return self.token_scores(self.hidden_states(x, training), y)

        return ModelCall(self, scores)(x, y, training=training)

    def token_scores(self, hidden, labels):
        """What a step with `loss_chunk_size` reads of each token.

        Args:
            hidden: `[batch, length, hidden_dim]`.
            labels: int `[batch, length]`.

        Returns:
            The cross entropy of each label and the most likely token, `[batch, length, 2]`.
        """
        losses, likeliest = self.token_losses(hidden, labels, self.loss_chunk_size)
        return tf.stack([losses, tf.cast(likeliest, losses.dtype)], axis=-1)

    def token_losses(self, hidden, labels, chunk_size):
        """The cross entropy of each token, and the most likely tokens.

        Args:
            hidden: `[batch, length, hidden_dim]`.
            labels: int `[batch, length]`.
            chunk_size: int, number of positions whose logits are computed at once.

        Returns:
            Both `[batch, length]`; see `rt_keras.ops.chunked_cross_entropy`.
        """
        if self.output_projection is not None:
            hidden = self.output_projection(hidden)
        if self.output_dense is None:
            table, bias = tf.convert_to_tensor(self.backbone.token_embedding.embeddings), None
        else:
            table = tf.transpose(tf.convert_to_tensor(self.output_dense.kernel))
            bias = tf.convert_to_tensor(self.output_dense.bias)
        return chunked_cross_entropy(hidden, table, labels, bias, chunk_size)


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenLoss(keras.losses.Loss):
    """The cross entropy that a step with `loss_chunk_size` reads, as a loss."""

    def call(self, y_true, y_pred):
        return y_pred[..., 0]


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenCrossEntropy(keras.metrics.Mean):
    """The cross entropy that a step with `loss_chunk_size` reads, as a metric."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred[..., 0], sample_weight)


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenAccuracy(keras.metrics.Mean):
    """The accuracy of the most likely tokens that a step with `loss_chunk_size` reads."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        found = tf.cast(y_pred[..., 1], tf.int32) == tf.cast(y_true, tf.int32)
        return super().update_state(found, sample_weight)


def positions_at_once(vocabulary_size, count):
    """The number of positions whose logits are computed at once where nothing is said of it.

    Args:
        vocabulary_size: int.
        count: int or int scalar tensor, the number of all positions.

    Returns:
        `count`, or fewer if the vocabulary is large.

    >>> positions_at_once(vocabulary_size=2**20, count=100)
    32
    """
    most = max(1, LOGITS_AT_ONCE // vocabulary_size)
    return tf.minimum(most, count) if tf.is_tensor(count) else min(most, count)


def _token_loss(loss):
    if isinstance(loss, TokenLoss):
        return loss
    if loss == "auto":
        return TokenLoss(name="sparse_categorical_crossentropy")
    if isinstance(loss, keras.losses.SparseCategoricalCrossentropy) and _of_all_logits(loss):
        return TokenLoss(name=loss.name, reduction=loss.reduction)
    raise ValueError(
        "With loss_chunk_size, loss must be 'auto' or a keras.losses.SparseCategoricalCrossentropy "
        f"with from_logits=True and without ignore_class. Received: loss={loss!r}"
    )


def _token_metrics(metrics):
    if metrics == "auto":
        return [TokenAccuracy(name="sparse_categorical_accuracy")]
    return metrics and [_token_metric(metric) for metric in keras.tree.flatten(metrics)]


def _token_metric(metric):
    if isinstance(metric, (TokenCrossEntropy, TokenAccuracy)):
        return metric
    if metric in ("accuracy", "acc", "sparse_categorical_accuracy"):
        return TokenAccuracy(name=metric)
    if isinstance(metric, keras.metrics.SparseCategoricalAccuracy):
        return TokenAccuracy(name=metric.name)
    if isinstance(metric, keras.metrics.SparseCategoricalCrossentropy) and _of_all_logits(metric):
        return TokenCrossEntropy(name=metric.name)
    raise ValueError(
        "With loss_chunk_size there are no logits for metrics but SparseCategoricalAccuracy and "
        "SparseCategoricalCrossentropy with from_logits=True and without ignore_class. Received: "
        f"{metric!r}"
    )


def _of_all_logits(x):
    config = x.get_config()
    return config["from_logits"] and config.get("ignore_class") is None
