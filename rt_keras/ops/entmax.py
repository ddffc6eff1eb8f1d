"""Sparsemax and 1.5-entmax: alternatives to softmax whose weights can be exactly 0."""

import tensorflow as tf

# Names of the functions that turn the logits of a query into its weights.
ACTIVATIONS = ("softmax", "sparsemax", "entmax15")


def sparsemax(logits):
    """Computes the distribution closest to the logits, with zeros far below the largest one.

    ```
    p_j = max(logits_j - τ, 0),    τ such that sum_j p_j = 1
    ```

    Unlike `keras.ops.sparsemax`, it accepts logits of minus infinity and does not sort.

    Args:
        logits: `[..., n]`, minus infinity for entries that get 0.

    Returns:
        `[..., n]`, computed in float32 (float64 for float64 logits) and returned in their dtype.
        Rows that contain only minus infinity get zeros.

    Source: Martins and Astudillo 2016, From Softmax to Sparsemax.

    >>> sparsemax(tf.constant([1.0, 0.5, -1.0])).numpy()
    array([0.75, 0.25, 0.  ], dtype=float32)
    """
    return _entmax(logits, 1)


def entmax15(logits):
    """Computes 1.5-entmax: between softmax and sparsemax, and smooth where weights reach 0.

    ```
    p_j = max(logits_j / 2 - τ, 0)²,    τ such that sum_j p_j = 1
    ```

    Args:
        logits: `[..., n]`, minus infinity for entries that get 0.

    Returns:
        `[..., n]`, computed in float32 (float64 for float64 logits) and returned in their dtype.
        Rows that contain only minus infinity get zeros.

    Source: Peters et al. 2019, Sparse Sequence-to-Sequence Models, section 3; in attention: Correia
    et al. 2019, Adaptively Sparse Transformers.

    >>> print(entmax15(tf.constant([1.0, 0.6, -1.0])).numpy().round(2))
    [0.64 0.36 0.  ]
    """
    return _entmax(logits, 2)


def check_activation(attention_activation, reason=None):
    """Raises a ValueError for an unknown activation, or for any but softmax if given a reason.

    Args:
        attention_activation: string.
        reason: string, the option that requires softmax. Defaults to None, for no such option.
    """
    if attention_activation not in ACTIVATIONS:
        raise ValueError(
            f"attention_activation must be one of {ACTIVATIONS}. Received: {attention_activation!r}"
        )
    if reason is not None and attention_activation != "softmax":
        raise ValueError(
            f"attention_activation must be 'softmax' with {reason}. "
            f"Received: {attention_activation!r}"
        )


def _entmax(logits, power):
    """Computes `max(logits / power - τ, 0) ** power`, which sums to 1 along the last axis."""
    logits = tf.convert_to_tensor(logits)
    wide = tf.float64 if logits.dtype == tf.float64 else tf.float32

    @tf.custom_gradient
    def weigh(x):
        weights = tf.nn.relu(x - _threshold(x, power)) ** power

        def gradients(upstream):
            # The Jacobian is diag(s) - s sᵀ / sum(s).
            slopes = tf.sqrt(weights) if power == 2 else tf.cast(weights > 0, wide)
            total = tf.reduce_sum(slopes, axis=-1, keepdims=True)
            mean = tf.reduce_sum(slopes * upstream, axis=-1, keepdims=True)
            return power * slopes * (upstream - tf.math.divide_no_nan(mean, total))

        return weights, gradients

    x = tf.cast(logits, wide) / power
    top = tf.stop_gradient(tf.reduce_max(x, axis=-1, keepdims=True))
    # A finite maximum keeps rows of only minus infinity free of NaN.
    return tf.cast(weigh(x - tf.maximum(top, wide.min)), logits.dtype)


def _threshold(x, power):
    """Finds τ for rows with a maximum of 0 by Newton's method, until it no longer changes.

    The sum decreases with τ and is convex in it, so steps from below, where the sum is above 1,
    never pass the solution. Six are enough for most rows, and each is one pass over them. Sorted
    rows would give τ directly, but XLA takes ten times as long to sort them.
    """

    def step(threshold, _):
        above = tf.nn.relu(x - threshold)
        excess = tf.reduce_sum(above**power, axis=-1, keepdims=True) - 1
        slope = power * tf.reduce_sum(tf.cast(above > 0, x.dtype) * above ** (power - 1), -1, True)
        higher = tf.maximum(threshold, threshold + tf.math.divide_no_nan(excess, slope))
        return higher, tf.reduce_any(higher > threshold)

    # With this τ, the largest entry alone is 1.
    start = -tf.ones_like(tf.reduce_max(x, axis=-1, keepdims=True))
    return tf.while_loop(lambda _, moves: moves, step, (start, tf.constant(True)))[0]
