"""Cross entropy over a large vocabulary that never holds all the logits."""

import functools

import tensorflow as tf

from rt_keras.ops.blocks import larger, size, smaller


def naive_cross_entropy(hidden, table, labels, bias=None, soft_cap=None):
    """Computes `chunked_cross_entropy` by its equation, with all the logits."""
    logits = tf.einsum("bnd,vd->bnv", hidden, table) + (0.0 if bias is None else bias)
    logits = logits if soft_cap is None else soft_cap * tf.tanh(logits / soft_cap)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return losses, tf.argmax(logits, axis=2, output_type=tf.int32)


def chunked_cross_entropy(
    hidden, table, labels, bias=None, chunk_size=1024, soft_cap=None, trainable=True, project=None
):
    """Computes each position's cross entropy and most likely label, in chunks of positions.

    ```
    logits = hidden · tableᵀ + bias
    loss_i = log Σ_v exp(logits_iv) - logits_i,label_i
    ```

    A soft cap c replaces the logits by c · tanh(logits / c).

    At most `2 * chunk_size * vocabulary` logits are in memory: the gradient recomputes those of
    each chunk but the last. Logits and all sums are float32.

    Args:
        hidden: `[batch, length, depth]`.
        table: `[vocabulary, depth]`, a vector for each label.
        labels: int `[batch, length]`.
        bias: `[vocabulary]`. Defaults to None, for zeros.
        chunk_size: int, number of positions, over all rows, whose logits are computed at once.
            Defaults to 1024.
        soft_cap: float, the soft cap. Defaults to None, for none.
        trainable: bool, whether the table and the bias have gradients, which cost a product more.
            Defaults to True.
        project: function from `[positions, depth]` to the logits, with bias and soft cap, of a
            layer that rounds. The gradient is that of the equation. Defaults to None, for the
            equation.

    Returns:
        The losses, float32 `[batch, length]`, and the labels with the largest logits, int32
        `[batch, length]`. As in Keras, labels out of range raise an `InvalidArgumentError`, or have
        NaN as their losses where the computation cannot stop: on accelerators and inside XLA.

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
    chunk_size = larger(smaller(count, chunk_size), 1)
    padding = larger(count, 1) + -larger(count, 1) % chunk_size - count
    labels = _chunks(tf.cast(labels, tf.int32), padding, chunk_size)
    weights = [table] if bias is None else [table, bias]
    project = project or functools.partial(_logits, weights, soft_cap)

    @tf.custom_gradient
    def computed(hidden, *trained):
        chunks = _chunks(hidden, padding, chunk_size)
        *results, slopes = _forward(chunks, labels, project, soft_cap)

        def gradient(upstream, _):
            upstream = _chunks(upstream, padding, chunk_size)
            options = len(trained), project, soft_cap
            gradients = _gradients(slopes, upstream, chunks, labels, weights, *options)
            gradients[0] = tf.reshape(gradients[0][:count], tf.shape(hidden))
            return [tf.cast(x, y.dtype) for x, y in zip(gradients, (hidden, *trained))]

        return tuple(tf.reshape(x[:count], shape) for x in results), gradient

    return computed(hidden, *weights if trainable else [])


def _chunks(x, padding, chunk_size):
    """Splits `[batch, length, ...]` into `[chunks, chunk_size, ...]`, zero-padded."""
    rest = x.shape[2:]
    x = tf.reshape(x, [-1, *rest])
    x = tf.pad(x, [[0, padding]] + [[0, 0]] * len(rest))
    return tf.reshape(x, [-1, chunk_size, *rest])


def _forward(chunks, labels, project, soft_cap):
    """Computes the losses and likeliest labels of all chunks, and the slopes of the last chunk."""
    last = size(chunks, 0) - 1

    def scores(index):
        return _scores(project(chunks[index]), labels[index], soft_cap)

    losses, likeliest, slopes = scores(last)

    def step(index, losses, likeliest):
        results = scores(index)
        return index + 1, losses.write(index, results[0]), likeliest.write(index, results[1])

    arrays = _array(last, losses), _array(last, likeliest)
    return *[x.concat() for x in _each_before(last, step, *arrays)], slopes


def _gradients(slopes, upstream, chunks, labels, weights, num_trained, project, soft_cap):
    """Computes the gradients of all chunks and of the first `num_trained` weights.

    Only the last chunk's slopes are kept from the forward pass.
    """
    last = size(chunks, 0) - 1
    final, *sums = _chunk_gradients(slopes, upstream[last], chunks[last], weights, num_trained)

    def step(index, gradients, *sums):
        slopes = _scores(project(chunks[index]), labels[index], soft_cap)[-1]
        part = _chunk_gradients(slopes, upstream[index], chunks[index], weights, num_trained)
        return index + 1, gradients.write(index, part[0]), *map(tf.add, sums, part[1:])

    gradients, *sums = _each_before(last, step, _array(last, final), *sums)
    return [gradients.concat(), *sums]


def _array(last, x):
    """Returns an array of `last + 1` tensors, the last of which is x."""
    return tf.TensorArray(x.dtype, last + 1, element_shape=x.shape).write(last, x)


def _each_before(last, step, *values):
    """Returns the values after a step for each number below `last`."""
    return tf.while_loop(
        lambda index, *_: index < last,
        step,
        (tf.constant(0), *values),
        parallel_iterations=1,
        maximum_iterations=last,
    )[1:]


def _logits(weights, soft_cap, hidden):
    """Computes float32 logits, `[positions, vocabulary]`."""
    hidden, table, *bias = (tf.cast(x, tf.float32) for x in (hidden, *weights))
    logits = tf.matmul(hidden, table, transpose_b=True)
    if bias:
        logits += bias[0]
    return logits if soft_cap is None else soft_cap * tf.tanh(logits / soft_cap)


def _scores(logits, labels, soft_cap):
    """Computes the losses, likeliest labels and the slopes: the losses' gradients by products."""
    logits = tf.cast(logits, tf.float32)
    # The kernel computes both in one pass over the logits.
    losses, slopes = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
    if soft_cap is not None:
        slopes *= 1 - (logits / soft_cap) ** 2
    likeliest = tf.argmax(logits, axis=1, output_type=tf.int32)
    return losses, likeliest, slopes


def _chunk_gradients(slopes, upstream, hidden, weights, num_trained):
    """Computes the float32 gradients of a chunk's states and of the first `num_trained` weights."""
    hidden, table = (tf.cast(x, tf.float32) for x in (hidden, weights[0]))
    gradients = [(slopes @ table) * upstream[:, None]]  # [positions, depth]
    if num_trained > 0:
        # [vocabulary, depth]
        gradients.append(tf.matmul(slopes, upstream[:, None] * hidden, transpose_a=True))
    if num_trained > 1:
        gradients.append(tf.linalg.matvec(slopes, upstream, transpose_a=True))  # [vocabulary]
    return gradients
