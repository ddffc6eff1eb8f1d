"""Shares of the parts of a batch in its mean loss, where they do not weigh the same."""

from typing import NamedTuple

import keras
import tensorflow as tf

SUMS = "sum", "none", None


class Shares(NamedTuple):
    """Shares of a part of a batch in the loss of labels, and in those that layers add.

    Attributes:
        labels: float scalar, or `[parts]`.
        layers: the same for the losses of layers outside of an encoder.
        encoder: the same for those of an encoder.
    """

    labels: tf.Tensor
    layers: tf.Tensor
    encoder: tf.Tensor


def shares_of_loss(loss, labels, sample_weight):
    """Computes the factors with which the mean of the losses of parts is the loss of the batch.

    A mean divides by the sum of the weights, or by the number of labels that are not ignored; a
    part with twice as many counts twice. A sum is not divided.

    Args:
        loss: the argument `loss` of `compile`.
        labels: `[parts, examples, ...]`.
        sample_weight: `[parts, examples, ...]`, or None.

    Returns:
        Float `[parts]`, with a mean of 1 over all parts and replicas unless the loss is a sum.

    Raises:
        ValueError: if the loss is not a sum or a mean of the losses of single entries, or there are
            several losses that weigh parts differently.
    """
    losses = keras.tree.flatten(loss)
    wrong = [x for x in losses if isinstance(x, keras.losses.Loss) and not _is_reduced(x)]
    if wrong or (len(losses) > 1 and any(_divides_unevenly(x, sample_weight) for x in losses)):
        raise _no_entries(loss)
    loss = losses[0] if losses else None
    examples = tf.ones(tf.shape(tf.nest.flatten(labels)[0])[:2])  # [parts, examples]
    if getattr(loss, "reduction", "mean") in SUMS:
        return examples[:, 0] * tf.cast(tf.shape(examples)[0], tf.float32)
    if not _divides_unevenly(loss, sample_weight):
        return shares_of(examples)
    weights = tf.ones_like(labels, tf.float32)
    if getattr(loss, "ignore_class", None) is not None:
        weights = tf.cast(labels != tf.cast(loss.ignore_class, labels.dtype), tf.float32)
    if loss.reduction == "mean_with_sample_weight" and sample_weight is not None:
        sample_weight = tf.cast(sample_weight, tf.float32)
        for _ in range(weights.shape.rank - sample_weight.shape.rank):
            sample_weight = sample_weight[..., None]
        weights *= sample_weight
    return shares_of(weights)


def check_entries(loss, labels, outputs):
    """Raises a ValueError if a loss is one number, instead of one for each example or entry."""
    function = loss.call if isinstance(loss, keras.losses.Loss) else loss
    if callable(function) and tf.convert_to_tensor(function(labels, outputs)).shape.rank == 0:
        raise _no_entries(loss)


def _no_entries(loss):
    return ValueError(
        "With gradient_accumulation_steps or several replicas, loss must be one loss that is a "
        f"sum or a mean of the losses of single entries. Received: loss={loss!r}"
    )


def shares_of(weights):
    """Computes the share of each part in the sum of weights, times the number of parts.

    Args:
        weights: `[parts, ...]`.

    Returns:
        Float `[parts]`.

    >>> shares_of(tf.constant([[1, 1], [2, 0], [3, 5]])).numpy().tolist()
    [0.5, 0.5, 2.0]
    """
    weights = tf.cast(weights, tf.float32)
    sums = tf.reduce_sum(weights, axis=list(range(1, weights.shape.rank)))  # [parts]
    return tf.math.divide_no_nan(sums, mean_over_replicas(tf.reduce_mean(sums)))


def mean_over_replicas(x):
    """Returns the mean of a tensor over the replicas of the current strategy."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return x
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, x)


def _is_reduced(loss):
    return type(loss).__call__ is keras.losses.Loss.__call__


def _divides_unevenly(loss, sample_weight):
    by_weights = getattr(loss, "reduction", None) == "mean_with_sample_weight"
    ignores = getattr(loss, "ignore_class", None) is not None
    return ignores or (by_weights and sample_weight is not None)
