"""Blocks of full attention in NumPy, following their equations in float64."""

import numpy as np


def dense(layer, x):
    return x @ np.asarray(layer.kernel) + (0 if layer.bias is None else np.asarray(layer.bias))


def layer_norm(layer, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + layer.epsilon)
    return x * np.asarray(layer.gamma) + np.asarray(layer.beta)


def attention(layer, x, y, seen):
    """`rt_keras.layers.MultiHeadAttention` of full heads, one query after the other.

    Args:
        layer: the layer.
        x: `[batch, length, width]`, of the queries.
        y: `[batch, other_length, width]`, of the keys and values.
        seen: bool `[batch, length, other_length]`, which key each query sees.
    """
    queries, keys, values = (
        np.stack(np.split(dense(part, of), layer.num_heads, axis=-1))
        for part, of in ((layer.query_dense, x), (layer.key_dense, y), (layer.value_dense, y))
    )
    output = np.zeros([layer.num_heads, *x.shape[:2], values.shape[-1]])
    for head, row, i in np.ndindex(*output.shape[:3]):
        kept = seen[row, i]
        logits = keys[head, row, kept] @ queries[head, row, i] / np.sqrt(queries.shape[-1])
        shares = np.exp(logits - logits.max())
        output[head, row, i] = shares / shares.sum() @ values[head, row, kept]
    return dense(layer.output_dense, np.concatenate(output, axis=-1))


def pre_norm_block(block, x, seen, encoded=None, seen_of_encoder=None):
    """`rt_keras.layers.TransformerBlock` with relu: x + f(LN(x)) for each f in turn."""
    hidden = layer_norm(block.attention_norm, x)
    x = x + attention(block.attention, hidden, hidden, seen)
    if encoded is not None:
        hidden = layer_norm(block.cross_attention_norm, x)
        x = x + attention(block.cross_attention, hidden, encoded, seen_of_encoder)
    hidden = layer_norm(block.feed_forward_norm, x)
    hidden = np.maximum(dense(block.feed_forward.inner_dense, hidden), 0)
    return x + dense(block.feed_forward.output_dense, hidden)
