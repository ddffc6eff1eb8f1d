"""Small models like RoBERTa and GPT-2, before and after adaptation."""

import math

import keras
import keras_hub
import numpy as np
import tensorflow as tf

import rt_keras
from rt_keras.benchmarks.approximate.kinds import GLOBAL_TOKENS, KINDS
from rt_keras.benchmarks.approximate.tasks import VOCABULARY


def make_backbone(causal, length, layers, width, heads, period=None):
    """Makes a KerasHub backbone with full attention.

    Args:
        causal: bool, whether to make a GPT-2 backbone, rather than RoBERTa.
        length: int, the maximum number of tokens.
        layers, width, heads: ints, the number of blocks, their width and their number of heads.
        period: int, the number of tokens after which the initial positions repeat. Defaults to
            `length`.

    Returns:
        A backbone whose initial weights learn fast at a small width: Glorot-uniform kernels,
        embeddings of a similar scale, and learned positions that start as waves.
    """
    cls = keras_hub.models.GPT2Backbone if causal else keras_hub.models.RobertaBackbone
    backbone = cls(
        vocabulary_size=VOCABULARY,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        dropout=0.0,
        max_sequence_length=length,
    )
    for weight in backbone.weights:
        if weight.path.endswith("kernel"):
            drawn = keras.initializers.GlorotUniform()(_joined_heads(weight))
            weight.assign(keras.ops.reshape(drawn, weight.shape))
        elif tuple(weight.shape) == (length, width):
            weight.assign(2.2 * waves(length, width, period or length))
        elif weight.path.endswith("embeddings"):
            weight.assign(keras.random.normal(weight.shape, stddev=0.7))
    by_path = {weight.path: weight for weight in backbone.weights}
    for path, weight in by_path.items():
        if path.endswith("key/kernel"):
            weight.assign(by_path[path.replace("key/kernel", "query/kernel")])
    return backbone


def waves(length, width, period):
    """Returns sines and cosines of positions: the first terms of a Fourier series.

    ```
    wave_ik = a_k sin(2πki / period), a_k cos(2πki / period),   1 <= k <= width / 2
    ```

    with a_k proportional to 1 / sqrt(k), so that slow waves are stronger, and a mean a_k² of 1.

    Unlike the sinusoids of the Transformer, none is almost constant within a sequence, so attention
    learns to distinguish positions in hundreds of steps, not thousands.

    Args:
        length, width: ints.
        period: int.

    Returns:
        float32 array `[length, width]`.

    >>> waves(4, 2, 4).round().tolist()
    [[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, -0.0]]
    """
    k = 1 + np.arange(width // 2)
    angles = 2 * np.pi / period * np.outer(np.arange(length), k)
    amplitudes = np.sqrt(len(k) / np.sum(1 / k) / k)
    found = amplitudes * [np.sin(angles), np.cos(angles)]
    return np.concatenate(list(found), axis=1).astype(np.float32)


def _joined_heads(kernel):
    """Returns the shape of a kernel with the head and depth axes merged."""
    if "attention_output" in kernel.path:
        return (math.prod(kernel.shape[:-1]), kernel.shape[-1])
    return (kernel.shape[0], math.prod(kernel.shape[1:]))


def adapted(backbone, kind, keys, length, causal, sample=None):
    """Returns a backbone with other heads.

    Args:
        backbone: a backbone from `make_backbone`.
        kind: string, a key of `KINDS`.
        keys: int, the maximum number of keys that a query sees.
        length: int, tokens per sequence.
        causal: bool, whether attention is causal.
        sample: dictionary of inputs to fit the centroids to, if the heads have any. Defaults to
            None, for random centroids.

    Returns:
        A backbone.
    """
    groups = KINDS[kind](backbone.num_heads, keys, length, causal)
    model = rt_keras.adapt(backbone, groups, num_global_tokens=GLOBAL_TOKENS.get(kind))
    return model


def inputs_of(tokens):
    """Returns the inputs of a backbone for token ids without padding."""
    tokens = tf.convert_to_tensor(tokens)
    return {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}


def loss_and_hits(task, head, backbone, batch):
    """Computes the mean cross entropy and the accuracy of a batch.

    Args:
        task: string, a key of `tasks.TASKS`.
        head: `keras.layers.Dense`, the output layer, with two units for "span" and `VOCABULARY`
            units for other tasks.
        backbone: a backbone.
        batch: tuple of token ids, targets and weights.

    Returns:
        Two float scalars. A span is correct if both its ends are.
    """
    tokens, targets, weights = batch
    logits = head(backbone(inputs_of(tokens), training=False))
    if task == "span":
        logits = tf.linalg.matrix_transpose(logits)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    right = tf.cast(tf.argmax(logits, -1, tf.int32) == targets, tf.float32)
    if task == "span":
        right, weights = tf.reduce_min(right, axis=-1), tf.reduce_min(weights, axis=-1)
        losses = tf.reduce_sum(losses, axis=-1)
    total = tf.reduce_sum(weights)
    return tf.reduce_sum(losses * weights) / total, tf.reduce_sum(right * weights) / total
