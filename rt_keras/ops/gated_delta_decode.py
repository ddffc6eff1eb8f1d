"""The gated delta rule for one position at a time."""

import tensorflow as tf

from rt_keras.ops.caches import where_counted


def gated_delta_step(query, key, value, state, *, log_decay, beta, count=None):
    """Computes `gated_delta_rule` of one position, given the state of earlier ones.

    Args:
        query, key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        state: `[batch, heads, depth, value_depth]`, the state of `gated_delta_rule`, or of the last
            step.
        log_decay, beta: `[batch, heads, 1]`.
        count: int `[batch]`, 0 for rows whose position is padding: their state is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.

    Returns:
        `[batch, heads, 1, value_depth]`, and the state with this position added.

    >>> x, state = tf.ones([1, 2, 1, 4]) / 2, tf.zeros([1, 2, 4, 4])
    >>> gates = {"log_decay": tf.zeros([1, 2, 1]), "beta": tf.ones([1, 2, 1])}
    >>> output, state = gated_delta_step(x, x, x, state, **gates)
    >>> output[0, 0, 0].numpy().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    query, key, new, log_decay, beta = (
        tf.cast(x, state.dtype) for x in (query, key, value, log_decay, beta)
    )
    after = tf.exp(log_decay)[..., None] * state
    error = new - tf.matmul(key, after)
    after += tf.matmul(key, beta[..., None] * error, transpose_a=True)
    output = tf.cast(tf.matmul(query, after), value.dtype)
    return output, where_counted(count, after, state)
