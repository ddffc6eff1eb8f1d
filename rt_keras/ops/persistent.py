"""Trainable keys and values that every query sees."""

import tensorflow as tf

from rt_keras.ops.attend import attend
from rt_keras.ops.blocks import size


def persistent_attention(query, keys, values, *, dropout=0.0, seed=None):
    """Attention to persistent keys, which have no position.

    With P the persistent keys,

    ```
    output_i = sum_j softmax_j(query_i · key_j / sqrt(depth)) value_j    over j in P
    ```

    `merge` combines the output with attention to other keys.

    Args:
        query: `[batch, heads, length, depth]`.
        keys: `[heads, persistent, depth]`.
        values: `[heads, persistent, value_depth]`.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp of the logits,
        `[batch, heads, length]`.

    Source: Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory, section 4.2.

    >>> x, keys = tf.random.normal([1, 2, 5, 4]), tf.random.normal([2, 3, 4])
    >>> persistent_attention(x, keys, keys)[0].shape
    TensorShape([1, 2, 5, 4])
    """
    keys, values = (
        tf.broadcast_to(tf.cast(x, query.dtype), [size(query, 0), *x.shape]) for x in (keys, values)
    )
    scaled = query * query.shape[3] ** -0.5
    return attend(scaled, keys, values, True, dropout=dropout, seed=seed)
