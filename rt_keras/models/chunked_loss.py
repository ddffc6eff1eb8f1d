"""Training with a large vocabulary without all logits in memory at once."""

import keras
import tensorflow as tf

from rt_keras import ops
from rt_keras.keras_internals import is_training
from rt_keras.models.training import ModelCall, Training
from rt_keras.ops.slices import LOGITS_AT_ONCE


class ChunkedLoss(Training):
    """Mixin of language models with a `loss_chunk_size`.

    With it, the losses and metrics of `fit` and `evaluate` do not read logits. A step computes the
    cross entropy of each token and the most likely token, and losses and metrics read these two.
    The rest of a step is unchanged.

    List the mixin before KerasHub's base classes. A subclass defines
    `hidden_states(inputs, training)` and `token_losses(hidden, labels, chunk_size)`.
    """

    # Number of positions whose logits are computed at once in training; None for all.
    loss_chunk_size = None

    def compile_arguments(
        self, optimizer="auto", loss="auto", *, weighted_metrics="auto", **kwargs
    ):
        """Adapts losses and metrics among the arguments of KerasHub's `compile`.

        With `loss_chunk_size`, the loss must be a `SparseCategoricalCrossentropy`, and each metric
        must be a `SparseCategoricalCrossentropy` or an accuracy.

        Args:
            optimizer: optimizer, as for KerasHub's `compile`. Defaults to `"auto"`.
            loss: loss. Defaults to `"auto"`, a `SparseCategoricalCrossentropy` from logits.
            weighted_metrics: list of metrics. Defaults to `"auto"`, the accuracy.
            **kwargs: other arguments of KerasHub's `compile`.

        Returns:
            A tuple of positional arguments and a dictionary of keyword arguments.

        Raises:
            ValueError: if a loss or a metric is not supported with `loss_chunk_size`.
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
        """Computes the outputs of a step with `loss_chunk_size`.

        Args:
            hidden: `[batch, length, hidden_dim]`.
            labels: int `[batch, length]`.

        Returns:
            The cross entropy of each label and the most likely token, `[batch, length, 2]`.
        """
        losses, likeliest = self.token_losses(hidden, labels, self.loss_chunk_size)
        # Two of [batch, length] -> [batch, length, 2]
        return tf.stack([losses, tf.cast(likeliest, losses.dtype)], axis=-1)


def losses_of_layer(layer, hidden, labels, chunk_size):
    """Computes the cross entropy of the logits of an output layer, in chunks of positions.

    A quantized layer computes the logits, since it also rounds its inputs. Their gradient is that
    of its weights without rounding: Keras's embeddings have none.

    Args:
        layer: a built `Dense`, or a `ReversibleEmbedding`, which is called in reverse.
        hidden, labels, chunk_size: see `LanguageModel.token_losses`, which returns the same.

    Raises:
        ValueError: if the layer is trained in float8, whose scales follow each call.
    """
    if layer.quantization_mode == "float8" and is_training():
        raise ValueError(f"{layer.name} is float8, which needs loss_chunk_size=None in training")
    is_dense, soft_cap = isinstance(layer, keras.layers.Dense), getattr(layer, "logit_soft_cap", 0)
    bias = tf.convert_to_tensor(layer.bias) if is_dense else None
    if layer.quantization_mode is None:
        project, tied = None, not is_dense and layer.tie_weights
        table = layer.kernel if is_dense else layer.embeddings if tied else layer.reverse_embeddings
        table = tf.cast(table, hidden.dtype)
        table = table if tied else tf.transpose(table)  # [vocabulary, depth]
    else:
        project = _projection(layer, {} if is_dense else {"reverse": True})
        # [depth, vocabulary], the logits of unit vectors
        table = project(tf.eye(hidden.shape[-1], dtype=hidden.dtype))
        table = soft_cap * tf.atanh(table / soft_cap) if soft_cap else table
        table = tf.transpose(table - bias if is_dense else table)
    options = soft_cap or None, bool(layer.trainable_weights), project
    return ops.chunked_cross_entropy(hidden, table, labels, bias, chunk_size, *options)


def _projection(layer, options):
    """Returns the call of an output layer as a function that reads no variable."""
    values = [(variable, tf.convert_to_tensor(variable)) for variable in layer.variables]

    def project(hidden):
        with keras.StatelessScope(values):
            return layer(hidden, **options)

    return project


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenLoss(keras.losses.Loss):
    """Loss that returns the cross entropy from `ChunkedLoss.token_scores`."""

    def call(self, y_true, y_pred):
        return y_pred[..., 0]


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenCrossEntropy(keras.metrics.Mean):
    """Mean of the cross entropy from `ChunkedLoss.token_scores`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred[..., 0], sample_weight)


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenAccuracy(keras.metrics.Mean):
    """Accuracy of the most likely tokens from `ChunkedLoss.token_scores`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_right = tf.cast(y_pred[..., 1], tf.int32) == tf.cast(y_true, tf.int32)
        return super().update_state(is_right, sample_weight)


def positions_at_once(vocabulary_size, count):
    """Returns the default number of positions whose logits are computed at once.

    Args:
        vocabulary_size: int, number of token ids.
        count: int or int scalar tensor, total number of positions.

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
        "With loss_chunk_size, a metric must be a SparseCategoricalAccuracy, or a "
        "SparseCategoricalCrossentropy with from_logits=True and without ignore_class. Received: "
        f"{metric!r}"
    )


def _of_all_logits(x):
    config = x.get_config()
    return config["from_logits"] and config.get("ignore_class") is None
