"""Keys and values that are learnt, and seen by every query."""

import tensorflow as tf

from rt_keras.ops.attend import attend, merge_pair
from rt_keras.ops.blocks import size


def persistent_attention(
    query, keys, values, output, logsumexp, *, query_mask=None, dropout=0.0, seed=None
):
    """Attention to which keys of no position are added.

    With N(i) the keys that query i has been given, and P the persistent ones,

    ```
    output_i = sum_j softmax_j(query_i · key_j / sqrt(depth)) value_j    over j in N(i) and P
    ```

    under one softmax.

    Args:
        query: `[batch, heads, length, depth]`.
        keys: `[heads, persistent, depth]`.
        values: `[heads, persistent, value_depth]`.
        output: `[batch, heads, length, value_depth]`, of attention to N(i).
        logsumexp: `[batch, heads, length]`, of its logits.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp `[batch, heads, length]`.

    Source: Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory, section 4.2.

    >>> x, keys = tf.random.normal([1, 2, 5, 4]), tf.random.normal([2, 3, 4])
    >>> nothing = tf.zeros_like(x), tf.fill([1, 2, 5], -1e30)
    >>> persistent_attention(x, keys, keys, *nothing)[0].shape
    TensorShape([1, 2, 5, 4])
    """
    keys, values = (
        tf.broadcast_to(tf.cast(x, query.dtype), [size(query, 0), *x.shape]) for x in (keys, values)
    )
    scaled = query * query.shape[3] ** -0.5
    found = attend(scaled, keys, values, True, dropout=dropout, seed=seed)
    output, logsumexp = merge_pair((output, logsumexp), found, return_logsumexp=True)
    if query_mask is not None:
        real = tf.cast(query_mask, tf.bool)[:, None, :, None]
        output = tf.where(real, output, tf.zeros_like(output))
    return output, logsumexp
