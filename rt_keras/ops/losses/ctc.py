"""The loss of connectionist temporal classification."""

import numpy as np
import tensorflow as tf

# Log probability of what is impossible; finite, so that differences have gradients.
IMPOSSIBLE = -1e30


def naive_ctc_loss(labels, logits, blank=0):
    """Computes `ctc_loss` of one text by the recursion of its equation, in NumPy."""
    p = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)  # [length, classes]
    states = [blank]
    for label in labels:
        states += [label, blank] if label != blank else []
    before = [1.0] + [0.0] * (len(states) - 1)
    for row in p:
        after = []
        for s, state in enumerate(states):
            skips = s > 1 and state not in (blank, states[s - 2])
            ways = before[max(s - 1 - skips, 0) : s + 1]
            after.append(sum(ways) * row[state])
        before = after
    return -np.log(sum(before[-2:]))


def ctc_loss(labels, logits, blank=0):
    """Computes -ln p(labels) over all alignments of the labels with the positions.

    An alignment gives each position a label or the blank. Without its repetitions, and then without
    its blanks, it is the labels. With the labels between blanks, l' = (blank, l_1, blank, l_2, ...,
    blank), and a_t(s) the probability of all alignments of the first t positions that end in l'_s,

    ```
    a_t(s) = p_t(l'_s) (a_(t-1)(s) + a_(t-1)(s - 1) + a_(t-1)(s - 2))
    ```

    where the last term is left out if l'_s is the blank or l'_(s - 2). The loss is
    -ln(a_n(last) + a_n(last - 1)).

    `keras.ops.ctc_loss` computes the same from a matrix of all pairs of s, so that its time grows
    with the square of the number of labels; here it grows with the number.

    Args:
        labels: int `[batch, labels]`, padded at the end with `blank`.
        logits: `[batch, length, classes]`.
        blank: int, the class of the blank. Defaults to 0.

    Returns:
        float32 `[batch]`. If there are too few positions for the labels, it is about 1e30, and its
        gradient is 0.

    Source: Graves et al. 2006, Connectionist Temporal Classification, section 4.1.

    >>> logits = tf.math.log([[[0.25, 0.75], [0.5, 0.5]]])
    >>> round(float(tf.exp(-ctc_loss([[1]], logits))[0]), 4)  # All alignments but two blanks.
    0.875
    """
    # Keras converts labels to floats.
    labels = tf.cast(labels, tf.int32)
    log_p = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    states = _between_blanks(labels, blank)
    # A product with one-hot vectors, whose gradient is not a scatter.
    classes = tf.one_hot(states, log_p.shape[-1], dtype=tf.float32)
    log_p = tf.einsum("btc,bsc->tbs", log_p, classes)  # [length, batch, states]
    two_before = tf.pad(states, [[0, 0], [2, 0]], constant_values=blank)[:, :-2]
    skips = tf.where((states != blank) & (states != two_before), 0.0, IMPOSSIBLE)
    count = tf.reduce_sum(tf.cast(labels != blank, tf.int32), axis=1)[:, None]
    place = tf.range(tf.shape(states)[1])
    ends = tf.where((place == 2 * count) | (place == 2 * count - 1), 0.0, IMPOSSIBLE)
    return _alignments(log_p, skips, ends)


@tf.custom_gradient
def _alignments(log_p, skips, ends):
    """Returns -ln of the probability of all alignments, `[batch]`.

    `log_p`, `[length, batch, states]`, is that of the label of each state. `skips` and `ends`,
    `[batch, states]`, are 0 where the last label but one may precede a state and where an alignment
    may end, and `IMPOSSIBLE` elsewhere.

    The gradient of `log_p` is minus the probability of each state at each position, given the
    labels: a_t(s) b_t(s) / p(labels), where b_t(s) is the probability of all that comes after.
    """
    # Before the first position, only the first blank may have been passed.
    start = tf.where(tf.range(tf.shape(log_p)[2]) == 0, 0.0, tf.fill(tf.shape(ends), IMPOSSIBLE))

    def forward(before, row):
        ways = [before, _shifted(before, 1), _shifted(before, 2) + skips]
        return _log_sum(ways) + row

    ahead = tf.scan(forward, log_p, start)
    loss = -tf.reduce_logsumexp(ahead[-1] + ends, axis=1)

    def backward(after, row):
        after = after + row
        return _log_sum([after, _shifted(after, -1), _shifted(after + skips, -2)])

    def gradient(upstream):
        rest = tf.scan(backward, log_p, ends, reverse=True)
        rest = tf.concat([rest[1:], ends[None]], axis=0)
        # Shares of 1 at each position, whatever has been lost to rounding.
        shares = tf.nn.softmax(ahead + rest)
        # No alignment has the labels: nothing to learn.
        shares = tf.where(loss[:, None] < -IMPOSSIBLE / 2, shares, 0.0)
        return -upstream[None, :, None] * shares, None, None

    return loss, gradient


def _log_sum(values):
    """Returns the log of the sum of exponentials, which may all be `IMPOSSIBLE`."""
    largest = tf.maximum(tf.maximum(values[0], values[1]), values[2])
    return largest + tf.math.log(sum(tf.exp(value - largest) for value in values))


def _between_blanks(labels, blank):
    """Returns the labels with a blank before, between and after them, `[batch, 2 labels + 1]`."""
    pairs = tf.stack([tf.fill(tf.shape(labels), blank), labels], axis=2)
    states = tf.reshape(pairs, [tf.shape(labels)[0], 2 * tf.shape(labels)[1]])
    return tf.pad(states, [[0, 0], [0, 1]], constant_values=blank)


def _shifted(x, steps):
    """Returns x, each entry from `steps` places before, or after if `steps` is negative."""
    if steps < 0:
        return tf.pad(x, [[0, 0], [0, -steps]], constant_values=IMPOSSIBLE)[:, -steps:]
    return tf.pad(x, [[0, 0], [steps, 0]], constant_values=IMPOSSIBLE)[:, :-steps]
