"""Trains the attention of an adapted language model to give what the original gives.

python docs/benchmarks/recipes/distill.py ORIGINAL ADAPTED book.txt OUTPUT [STEPS]

loss: the mean over blocks of ‖h - t‖² / ‖t‖² + KL(p ‖ q), where h and t are outputs of the adapted
and the original model, and q and p the full attention weights of 16 queries (DeepSeek-V3.2, 2.1).
"""

import sys
from pathlib import Path

import keras
import keras_hub
import numpy as np
import tensorflow as tf

import rt_keras
from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import FullHeads
from rt_keras.layers.attention_calls import observe_attention
from rt_keras.layers.centroids import centroids_inside
from rt_keras.models.adapted.architectures import attention_blocks, attention_layers
from rt_keras.ops.blocks import repeat_heads

BATCH, LENGTH = 2, 512
original, adapted, text, output, steps = [*sys.argv, "200"][1:6]


def _run(model, inputs, training):
    with observe_attention(model) as calls:
        return model(inputs, training=training), calls


def _log_weights(call, chosen):
    """Computes ln of the causal attention weights of queries, `[batch, heads, queries, keys]`."""
    parts = [(query, query if key is None else key) for _, (query, _, key), _ in call.groups]
    query = tf.concat([tf.gather(query, chosen, axis=2) for query, _ in parts], axis=1)
    key = tf.concat([repeat_heads(key, query.shape[1]) for query, key in parts], axis=1)
    logits = tf.matmul(query, key, transpose_b=True) / query.shape[-1] ** 0.5
    seen = tf.range(tf.shape(key)[2]) <= chosen[:, None]
    return tf.nn.log_softmax(tf.where(seen, logits, -1e9))


@tf.function
def _step(token_ids, chosen):
    inputs = {"token_ids": token_ids, "padding_mask": tf.ones_like(token_ids)}
    (targets, originals), loss = _run(teacher, inputs, False), 0.0
    with tf.GradientTape() as tape:
        states, calls = _run(student, inputs, True)
        for h, t, call, of_teacher in zip(states, targets, calls, originals, strict=True):
            q, p = _log_weights(call, chosen), _log_weights(of_teacher, chosen)
            loss += tf.reduce_sum((h - t) ** 2) / tf.reduce_sum(t**2) / len(states)
            loss += tf.reduce_mean(tf.reduce_sum(tf.exp(p) * (p - q), axis=-1)) / len(states)
    optimizer.apply(tape.gradient(loss, trained), trained)
    if centroids_inside(student):
        centroids.update_centroids()
    return loss


task = keras_hub.models.CausalLM.from_preset(adapted)
layers = attention_layers(task.backbone)
full = rt_keras.adapt(original, [FullHeads(layers[0].num_heads)], layers=[])
student, teacher = (
    keras.Model(x.input, [block.output for block, _ in attention_blocks(x)])
    for x in (task.backbone, full.backbone)
)
trained = [weight for layer in layers for weight in layer.trainable_variables]
optimizer, centroids = keras.optimizers.Adam(1e-3), CentroidEMA()
if centroids_inside(student):
    centroids.set_model(student)
tokens = np.asarray(task.preprocessor.tokenizer(Path(text).read_text()))
rng = np.random.default_rng(0)
for number in range(int(steps)):
    rows = rng.integers(len(tokens) - LENGTH + 1, size=[BATCH, 1])
    rows = tf.constant(tokens[rows + np.arange(LENGTH)])
    print(number, float(_step(rows, tf.constant(rng.integers(LENGTH, size=16), tf.int32))))
task.save_to_preset(output)
