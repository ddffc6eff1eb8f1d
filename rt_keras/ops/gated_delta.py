"""The gated delta rule: a recurrence that stores keys and values in one matrix per head."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    larger,
    move_axis,
    of_one_length,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.caches import where_counted


def naive_gated_delta_rule(
    query, key, value, *, log_decay, beta, query_mask=None, key_mask=None, initial_state=None
):
    """The equation of `gated_delta_rule`: one position after the other."""
    batch, heads, length, depth = query.shape
    state = np.zeros([batch, heads, depth, value.shape[3]])
    if initial_state is not None:
        state = initial_state
    outputs = []
    for i in range(length):
        # [batch, heads, depth, 1], and [batch, heads, 1, value_depth]
        k, v = key[:, :, i, :, None], value[:, :, i, None]
        b, decay = (x[:, :, i, None, None] for x in (beta, np.exp(log_decay)))
        after = decay * (state - b * k @ (k.swapaxes(2, 3) @ state)) + b * k @ v
        real = True if key_mask is None else key_mask[:, i, None, None, None]
        state = np.where(real, after, state)
        outputs.append(query[:, :, i, None] @ state)
    output = np.concatenate(outputs, axis=2)
    return output if query_mask is None else np.where(query_mask[:, None, :, None], output, 0)


def gated_delta_rule(
    query,
    key,
    value,
    *,
    log_decay,
    beta,
    block_size=64,
    query_mask=None,
    key_mask=None,
    documents=None,
    initial_state=None,
    return_state=False,
):
    """Writes each key and value into a state that decays, and reads the state with each query.

    ```
    S_i = exp(log_decay_i) (I - beta_i key_i key_iᵀ) S_(i - 1) + beta_i key_i value_iᵀ
    output_i = S_iᵀ query_i
    ```

    So the state forgets a share of everything. If key_i has norm 1 and beta_i is 1, it replaces the
    value that it returns for key_i by value_i. Output i depends on positions up to i alone.

    Inside a block that starts with state S, with g_i the sum of its log decays up to i, the value
    that position i adds is a u_i that solves a triangular system:

    ```
    u_i + beta_i sum_(j < i) exp(g_i - g_j) (key_i · key_j) u_j
        = beta_i (value_i - exp(g_i) Sᵀ key_i)
    output_i = exp(g_i) Sᵀ query_i + sum_(j <= i) exp(g_i - g_j) (query_i · key_j) u_j
    ```

    All blocks are solved at once for an unknown S, and a loop over them computes their states. The
    cost is O(n · (block_size + depth) · depth), in float32 or float64. The gradient keeps one state
    per block.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, length, depth]`. Norms above 1 can make the state grow.
        value: `[batch, heads, length, value_depth]`.
        log_decay: `[batch, heads, length]`, finite numbers of at most 0.
        beta: `[batch, heads, length]`, from 0 to 1.
        block_size: int, positions in a block. It only affects speed. Defaults to 64.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which does not change the state; or
            None.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, each of
            which begins with a state of zeros; or None. Defaults to None.
        initial_state: `[batch, heads, depth, value_depth]`, the state before the first position.
            Defaults to None, for zeros.
        return_state: bool, whether to also return the state after the last position. Defaults to
            False.

    Returns:
        `[batch, heads, length, value_depth]` in the dtype of `value`, and with `return_state` the
        state `[batch, heads, depth, value_depth]`.

    Raises:
        ValueError: if queries and keys differ in length.

    Source: Yang et al. 2024, Gated Delta Networks: Improving Mamba2 with Delta Rule, section 3; the
    blocks are those of Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over
    Sequence Length, section 3.

    >>> x, gate = tf.random.normal([1, 2, 10, 4]), tf.random.uniform([1, 2, 10])
    >>> key = tf.math.l2_normalize(x, axis=-1)
    >>> gated_delta_rule(x, key, x, log_decay=-gate, beta=gate, block_size=4).shape
    TensorShape([1, 2, 10, 4])
    """
    query, key, value, log_decay, beta = map(
        tf.convert_to_tensor, (query, key, value, log_decay, beta)
    )
    message = "The gated delta rule needs as many keys as queries."
    query, value = of_one_length(query, value, message)
    dtype, length = accumulation_dtype(query.dtype), size(query, 2)
    if key_mask is not None:
        inputs = key, value, log_decay, beta
        key, value, log_decay, beta = (_where_real(key_mask, x) for x in inputs)
    shape = [size(query, 0), query.shape[1], query.shape[3], value.shape[3]]
    state = tf.zeros(shape, dtype) if initial_state is None else tf.cast(initial_state, dtype)
    if isinstance(length, int):
        block_size = min(block_size, max(length, 1))
    # An empty sequence is one block of padding.
    count = larger(ceil_div(length, block_size), 1)
    blocks = (
        move_axis(split_blocks(tf.cast(x, dtype), count, block_size), 2, 0)
        for x in (query, key, value, log_decay, beta)
    )
    if documents is not None:
        # [blocks, batch, 1, block_size]
        documents = move_axis(split_blocks(documents[:, None], count, block_size), 2, 0)
    output, state = _by_blocks(*blocks, state, documents)
    output = tf.cast(join_blocks(move_axis(output, 0, 2), length), value.dtype)
    if query_mask is not None:
        output = _where_real(query_mask, output)
    return (output, state) if return_state else output


def _where_real(mask, x):
    """Sets `[batch, heads, length, ...]` to 0 where a mask `[batch, length]` is False."""
    mask = tf.cast(mask, tf.bool)[:, None]
    if x.shape.rank > 3:
        mask = mask[..., None]
    return tf.where(mask, x, tf.zeros_like(x))


def _by_blocks(query, key, value, log_decay, beta, state, documents):
    """Computes the outputs of all blocks, and the state after the last one.

    Args:
        query, key, value: `[blocks, batch, heads, block_size, ...]`.
        log_decay, beta: `[blocks, batch, heads, block_size]`.
        state: `[batch, heads, depth, value_depth]`, before the first block.
        documents: int `[blocks, batch, 1, block_size]`, or None.

    Returns:
        `[blocks, batch, heads, block_size, value_depth]`, and a tensor like `state`.
    """
    sums = tf.cumsum(log_decay, axis=-1)
    places = tf.range(size(sums, 3))
    causal = places <= places[:, None]
    # Masked before exp(), which would overflow for later keys.
    between = tf.where(causal, sums[..., None] - sums[..., None, :], 0)  # [..., queries, keys]
    if documents is not None:
        causal &= documents[..., None] == documents[..., None, :]
    between = tf.where(causal, tf.exp(between), 0)
    # [blocks, batch, heads, block_size, 1]
    since_start, to_end = tf.exp(sums)[..., None], tf.exp(sums[..., -1:] - sums)[..., None]
    if documents is not None:
        # The state before a block is that of the last document before it.
        last = documents[..., -1:]
        before = tf.concat([documents[:1, ..., :1], last[:-1]], axis=0)
        since_start = tf.where((documents == before)[..., None], since_start, 0)
        to_end = tf.where((documents == last)[..., None], to_end, 0)
    beta = beta[..., None]
    products = between * tf.matmul(key, key, transpose_b=True)
    right = tf.concat([beta * value, beta * since_start * key], axis=-1)
    solution = solve_unit_triangular(beta * products, right)
    added, read = tf.split(solution, [value.shape[-1], key.shape[-1]], axis=-1)
    states, state = _states(since_start[..., -1:, :], to_end * key, added, read, state)
    added -= tf.matmul(read, states)
    weights = between * tf.matmul(query, key, transpose_b=True)
    return tf.matmul(since_start * query, states) + tf.matmul(weights, added), state


@tf.custom_gradient
def _states(decay, key, added, read, first):
    """Computes the state before each block, and the state after the last block.

    ```
    S_(m + 1) = decay_m S_m + key_mᵀ (added_m - read_m S_m)
    ```

    Args:
        decay: `[blocks, batch, heads, 1, 1]`.
        key, read: `[blocks, batch, heads, block_size, depth]`.
        added: `[blocks, batch, heads, block_size, value_depth]`.
        first: `[batch, heads, depth, value_depth]`, S_0.

    Returns:
        `[blocks, batch, heads, depth, value_depth]`, and `[batch, heads, depth, value_depth]`.
    """
    count = size(key, 0)

    def step(block, state):
        new = added[block] - tf.matmul(read[block], state)
        return decay[block] * state + tf.matmul(key[block], new, transpose_a=True)

    states, last = _loop(step, first, count)

    def gradients(states_gradient, last_gradient):
        def step_back(number, gradient):
            block = count - 1 - number
            new_gradient = tf.matmul(key[block], gradient)
            gradient = decay[block] * gradient
            gradient -= tf.matmul(read[block], new_gradient, transpose_a=True)
            return states_gradient[block] + gradient

        # The gradients of the states after the blocks, from the last to the first.
        after, first_gradient = _loop(step_back, last_gradient, count)
        after = tf.reverse(after, [0])  # [blocks, batch, heads, depth, value_depth]
        new, new_gradient = added - tf.matmul(read, states), tf.matmul(key, after)
        return (
            tf.reduce_sum(after * states, axis=[-2, -1], keepdims=True),
            tf.matmul(new, after, transpose_b=True),
            new_gradient,
            -tf.matmul(new_gradient, states, transpose_b=True),
            first_gradient,
        )

    return (states, last), gradients


def _loop(step, first, count):
    """Replaces x by `step(i, x)` for each i below `count`.

    Returns:
        All x before a step, along a new first axis, and the last x.
    """

    def body(i, x, history):
        return i + 1, tf.ensure_shape(step(i, x), first.shape), history.write(i, x)

    _, last, history = tf.while_loop(
        lambda i, *_: i < count,
        body,
        (tf.constant(0), first, tf.TensorArray(first.dtype, count, element_shape=first.shape)),
        parallel_iterations=1,
        maximum_iterations=count,
    )
    return history.stack(), last


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


@tf.custom_gradient
def solve_unit_triangular(matrix, right):
    """Solves `(I + L) solution = right`, where L is the part of a matrix below its diagonal.

    The inverse is that of blocks along the diagonal, which double in size until there is one:

    ```
    [A 0]⁻¹   [    A⁻¹       0 ]
    [B D]   = [-D⁻¹ B A⁻¹   D⁻¹]
    ```

    On a CPU, this is faster than `tf.linalg.triangular_solve` compiled with XLA, which substitutes
    row by row, and the gradient only multiplies by the same inverse.

    Args:
        matrix: `[..., n, n]`, with static n.
        right: `[..., n, columns]`.

    Returns:
        A tensor like `right`.

    >>> matrix = tf.constant([[0.0, 0.0], [2.0, 0.0]])
    >>> solve_unit_triangular(matrix, tf.ones([2, 1])).numpy().ravel().tolist()
    [1.0, -1.0]
    """
    inverse = _inverse(matrix)
    solution = tf.matmul(inverse, right)

    def gradients(upstream):
        right_gradient = tf.matmul(inverse, upstream, transpose_a=True)
        places = tf.range(matrix.shape[-1])
        matrix_gradient = -tf.matmul(right_gradient, solution, transpose_b=True)
        return tf.where(places < places[:, None], matrix_gradient, 0), right_gradient

    return solution, gradients


def _inverse(matrix):
    """Computes the inverse of I + L; see `solve_unit_triangular`."""
    *shape, _, size = sizes(matrix)
    padding = max(2 ** (size - 1).bit_length(), 2) - size
    matrix = tf.pad(matrix, [[0, 0]] * len(shape) + [[0, padding]] * 2)
    inverse = _inverse_of_squares(tf.reshape(matrix, [-1, size + padding, size + padding]))
    return tf.reshape(inverse, [*shape, size + padding, size + padding])[..., :size, :size]


def _inverse_of_squares(matrices):
    """Computes the inverses of `[count, n, n]`, where n is a power of two of at least 2."""
    size = matrices.shape[-1]
    if size == 2:
        identity = tf.eye(2, dtype=matrices.dtype)
        return identity - tf.constant([[0, 0], [1, 0]], matrices.dtype) * matrices
    upper, lower = tf.split(matrices, 2, axis=1)
    first, above = tf.split(upper, 2, axis=2)
    below, second = tf.split(lower, 2, axis=2)
    first, second = tf.split(_inverse_of_squares(tf.concat([first, second], axis=0)), 2)
    below = -tf.matmul(second, tf.matmul(below, first))
    upper = tf.concat([first, tf.zeros_like(above)], axis=2)
    return tf.concat([upper, tf.concat([below, second], axis=2)], axis=1)
