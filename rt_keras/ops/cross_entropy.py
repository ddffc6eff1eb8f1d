"""Cross entropy over a large vocabulary that never holds all the logits."""

import tensorflow as tf

from rt_keras.ops.blocks import size


def chunked_cross_entropy(hidden, table, labels, bias=None, chunk_size=1024, soft_cap=None):
    """Computes each position's cross entropy and most likely label, in chunks of positions.

    ```
    logits = hidden · tableᵀ + bias
    loss_i = log Σ_v exp(logits_iv) - logits_i,label_i
    ```

    A soft cap c replaces the logits by c · tanh(logits / c).

    At most `chunk_size * vocabulary` logits are in memory: the gradient recomputes those of each
    chunk. Logits and all sums are float32.

    Args:
        hidden: `[batch, length, depth]`.
        table: `[vocabulary, depth]`, a vector for each label.
        labels: int `[batch, length]`.
        bias: `[vocabulary]`. Defaults to None, for zeros.
        chunk_size: int, number of positions, over all rows, whose logits are computed at once.
            Defaults to 1024.
        soft_cap: float, the soft cap. Defaults to None, for none.

    Returns:
        The losses, float32 `[batch, length]`, NaN for labels out of range; and the labels with the
        largest logits, int32 `[batch, length]`.

    Source: Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models, which likewise
    recomputes the logits in the gradient. The soft cap is that of Gemma Team 2024, Gemma 2.

    >>> hidden, table = tf.random.normal([2, 5, 8]), tf.random.normal([100, 8])
    >>> labels = tf.zeros([2, 5], tf.int32)
    >>> losses, likeliest = chunked_cross_entropy(hidden, table, labels, chunk_size=4)
    >>> logits = tf.einsum("bnd,vd->bnv", hidden, table)
    >>> expected = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    >>> bool(tf.reduce_max(tf.abs(losses - expected)) < 1e-4)
    True
    """
    shape = [size(hidden, 0), size(hidden, 1)]
    count = shape[0] * shape[1]
    padding = -count % chunk_size
    labels = _chunks(tf.cast(labels, tf.int32), padding, chunk_size)
    bias = tf.zeros(size(table, 0), table.dtype) if bias is None else bias

    @tf.custom_gradient
    def computed(hidden, table, bias):
        chunks = _chunks(hidden, padding, chunk_size)
        losses, likeliest, logsumexps = tf.map_fn(
            lambda chunk: _forward(*chunk, table, bias, soft_cap),
            (chunks, labels),
            fn_output_signature=(tf.float32, tf.int32, tf.float32),
            parallel_iterations=1,
        )

        def gradient(of_losses, _):
            of_losses = _chunks(of_losses, padding, chunk_size)
            of_chunks, *of_whole = _gradients(
                chunks, labels, logsumexps, of_losses, table, bias, soft_cap
            )
            return _join(of_chunks, count, tf.shape(hidden)), *of_whole

        return (_join(losses, count, shape), _join(likeliest, count, shape)), gradient

    return computed(hidden, table, bias)


def _chunks(x, padding, chunk_size):
    """Splits `[batch, length, ...]` into `[chunks, chunk_size, ...]`, zero-padded."""
    rest = x.shape[2:]
    x = tf.reshape(x, [-1, *rest])
    x = tf.pad(x, [[0, padding]] + [[0, 0]] * len(rest))
    return tf.reshape(x, [-1, chunk_size, *rest])


def _join(x, count, shape):
    """Reshapes the first `count` rows of `[chunks, chunk_size, ...]` to `shape`."""
    return tf.reshape(tf.reshape(x, [-1, *x.shape[2:]])[:count], shape)


def _logits(hidden, table, bias, soft_cap):
    hidden, table, bias = (tf.cast(x, tf.float32) for x in (hidden, table, bias))
    logits = tf.matmul(hidden, table, transpose_b=True) + bias
    return logits if soft_cap is None else soft_cap * tf.tanh(logits / soft_cap)


def _is_label(labels, logits):
    return labels[:, None] == tf.range(size(logits, 1))


def _forward(hidden, labels, table, bias, soft_cap):
    """Computes the losses, most likely labels and logsumexps of a chunk."""
    logits = _logits(hidden, table, bias, soft_cap)
    logsumexps = tf.reduce_logsumexp(logits, axis=1)
    of_labels = tf.reduce_sum(tf.where(_is_label(labels, logits), logits, 0.0), axis=1)
    known = (labels >= 0) & (labels < size(table, 0))
    losses = tf.where(known, logsumexps - of_labels, float("nan"))
    return losses, tf.argmax(logits, axis=1, output_type=tf.int32), logsumexps


def _gradients(chunks, labels, logsumexps, of_losses, table, bias, soft_cap):
    """Computes the gradients of all chunks, of the table and of the bias."""
    count = size(chunks, 0)

    def step(index, found, of_table, of_bias):
        logits = _logits(chunks[index], table, bias, soft_cap)
        of_logits = tf.exp(logits - logsumexps[index][:, None])
        of_logits -= tf.cast(_is_label(labels[index], logits), tf.float32)
        of_logits *= of_losses[index][:, None]
        if soft_cap is not None:
            of_logits *= 1 - (logits / soft_cap) ** 2
        found = found.write(index, tf.cast(of_logits @ tf.cast(table, tf.float32), chunks.dtype))
        hidden = tf.cast(chunks[index], tf.float32)
        of_table += tf.matmul(of_logits, hidden, transpose_a=True)
        return index + 1, found, of_table, of_bias + tf.reduce_sum(of_logits, axis=0)

    _, found, *of_whole = tf.while_loop(
        lambda index, *_: index < count,
        step,
        (
            tf.constant(0),
            tf.TensorArray(chunks.dtype, count, element_shape=chunks.shape[1:]),
            tf.zeros(tf.shape(table)),
            tf.zeros(tf.shape(bias)),
        ),
        parallel_iterations=1,
        maximum_iterations=count,
    )
    return found.stack(), *[tf.cast(x, table.dtype) for x in of_whole]
