"""Bounded memory: a function mapped over slices one at a time, recomputed in the gradient."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import ceil_div, move_axis, size, sizes
from rt_keras.ops.devices import has_accelerator, runs_on_cpu_kernels

# Numbers of attention logits. Up to `MAX_LOGITS` (768 MiB in float32) are computed at once and kept
# for the gradient. If there are more, `LOGITS_AT_ONCE` (128 MiB) are computed at a time and
# recomputed for the gradient, which takes a third more time. Accelerators, which need more work at
# once, compute `LOGITS_ON_ACCELERATORS` (512 MiB).
MAX_LOGITS = 3 * 2**26
LOGITS_AT_ONCE = 2**25
LOGITS_ON_ACCELERATORS = 2**27
# TensorFlow's kernels on a CPU keep and compute at most so many (64 MiB): without a compiler, more
# tensors of their size exist at once.
LOGITS_OF_KERNELS = 2**24


class HeadInputs(NamedTuple):
    """Tensors of some heads, as `over_heads` hands them on; None for those that there are not."""

    query: tf.Tensor
    value: tf.Tensor
    key: tf.Tensor | None = None
    centroids: tf.Tensor | None = None
    load_bias: tf.Tensor | None = None
    scale: tf.Tensor | None = None
    rotations: tf.Tensor | None = None
    relative_embeddings: tf.Tensor | None = None
    query_members: tf.Tensor | None = None
    key_members: tf.Tensor | None = None
    query_mask: tf.Tensor | None = None
    key_mask: tf.Tensor | None = None
    documents: tf.Tensor | None = None
    block_numbers: tf.Tensor | None = None
    seed: tf.Tensor | None = None


def logits_at_once():
    """Returns the number of attention logits that are computed at once if there are many."""
    if has_accelerator():
        return LOGITS_ON_ACCELERATORS
    return min(LOGITS_OF_KERNELS, LOGITS_AT_ONCE) if runs_on_cpu_kernels() else LOGITS_AT_ONCE


def map_slices(function, stacked, whole, dtype):
    """Maps `function` over the first axis of some tensors, one slice in memory at a time.

    The gradient recomputes each slice from the arguments, which are all that is kept.

    Args:
        function: function of a dictionary with one slice of each entry of `stacked`, and of
            `whole`. It returns a tensor or a tuple of tensors.
        stacked: dictionary of tensors whose first axes have the same size, the number of slices.
        whole: dictionary of tensors passed to every slice. If a slice only gathers rows of such a
            tensor (`tf.gather`), its gradient costs no more than these rows.
        dtype: dtype of the result, or a tuple of dtypes.

    Returns:
        The results, stacked along a new first axis.
    """
    count = size(next(iter(stacked.values())), 0)
    # To write a bfloat16 part into all results, XLA on a CPU converts all of them to float32 and
    # back.
    stored = dtype if has_accelerator() else tf.nest.map_structure(_sum_dtype, dtype)

    def arguments_at(flat, index):
        values = [x[index] for x in flat[: len(stacked)]]
        return dict(zip(stacked, values)), dict(zip(whole, flat[len(stacked) :]))

    @tf.custom_gradient
    def mapped(*flat):
        result = tf.map_fn(
            lambda index: _cast(function(*arguments_at(flat, index)), stored),
            tf.range(count),
            fn_output_signature=stored,
            parallel_iterations=1,
        )
        result = _cast(result, dtype)
        return result, lambda *upstream: gradients(flat, tf.nest.flatten(result), upstream)

    def gradients(flat, results, upstream):
        # Inside a compiled function, TensorFlow passes None for results that nothing learns from.
        if all(x is None for x in upstream):
            return [None] * len(flat)
        pairs = zip(results, upstream, strict=True)
        upstream = [tf.zeros_like(x) if signal is None else signal for x, signal in pairs]
        learnt = [i for i, x in enumerate(flat) if x.dtype.is_floating]
        learnt_stacked = [i for i in learnt if i < len(stacked)]
        learnt_whole = [i for i in learnt if i >= len(stacked)]

        def step(index, stacks, sums):
            part, every = arguments_at(flat, index)
            inputs = [*part.values(), *every.values()]
            watched, signal = [inputs[i] for i in learnt], [x[index] for x in upstream]
            slopes = gradients_of(lambda *_: function(part, every), watched, signal)
            slopes = dict(zip(learnt, slopes))
            stacks = [x.write(index, slopes[i]) for x, i in zip(stacks, learnt_stacked)]
            return index + 1, stacks, [_plus(x, slopes[i]) for x, i in zip(sums, learnt_whole)]

        stacks = [tf.TensorArray(flat[i].dtype, count) for i in learnt_stacked]
        # In float32, because a sum of many bfloat16 numbers stops growing, and GPUs have no fast
        # atomic addition of them.
        sums = [tf.zeros_like(flat[i], accumulation_dtype(flat[i].dtype)) for i in learnt_whole]
        _, stacks, sums = tf.while_loop(
            lambda index, *_: index < count,
            step,
            (tf.constant(0), stacks, sums),
            parallel_iterations=1,
            maximum_iterations=count,
        )
        slopes = dict(zip(learnt_stacked, [stack.stack() for stack in stacks]))
        slopes.update((i, tf.cast(x, flat[i].dtype)) for i, x in zip(learnt_whole, sums))
        return [slopes.get(i) for i in range(len(flat))]

    return mapped(*stacked.values(), *whole.values())


def gradients_of(function, inputs, upstream):
    """Computes a function of tensors again, and the gradients of the tensors."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
    return tape.gradient(outputs, inputs, upstream, unconnected_gradients="zero")


def _sum_dtype(dtype):
    """Returns the dtype of a sum of many tensors of a dtype."""
    return accumulation_dtype(dtype) if tf.as_dtype(dtype).is_floating else dtype


def _cast(tensors, dtypes):
    return tf.nest.map_structure(tf.cast, tensors, dtypes)


def _plus(total, gradient):
    """Adds a gradient, which may be `tf.IndexedSlices`, to a total of another dtype."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, total.dtype)
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, None], values)
    return total + tf.cast(gradient, total.dtype)


def over_heads(function, activations, weights, shared, logits, dtype):
    """Runs an attention function over all heads, in slices of heads if there are too many logits.

    Entries that are None are left out of the dictionaries.

    Args:
        function: function of a dictionary of arguments, with any number of heads. It returns
            `[batch, heads, length, depth]`, or a tuple of such tensors.
        activations: dictionary of arguments with the heads on axis 1, `[batch, heads, ...]`. Some
            may have fewer heads, each of which serves several consecutive heads of the others and
            stays in one slice with them.
        weights: dictionary of arguments with the heads on axis 0, `[heads, ...]`, or fewer heads.
        shared: dictionary of arguments shared by all heads.
        logits: int, number of attention logits of all heads; or a tensor if shapes are not static,
            in which case there is one slice.
        dtype: dtype of the result, or a tuple of dtypes.
    """
    activations, weights = _tensors(activations), _tensors(weights)
    axes = {**dict.fromkeys(activations, 1), **dict.fromkeys(weights, 0)}
    split = {**activations, **weights}
    fewest = min(x.shape[axes[name]] for name, x in split.items())
    slices = _slices_of_heads(fewest, logits)
    return _in_slices(function, split, _tensors(shared), slices, axes, 1, dtype)


def over_blocks(function, per_block, shared, slices, dtype):
    """Runs a function over all blocks, a slice of blocks at a time.

    Args:
        function: function of a dictionary of arguments, with any number of blocks. It returns
            `[batch, heads, blocks, ...]`, or a tuple of such tensors.
        per_block: dictionary of arguments `[batch, heads, blocks, ...]`; None entries are left out.
        shared: dictionary of arguments shared by all blocks; None entries are left out.
        slices: int, number of slices, a divisor of the number of blocks; see `num_slices`.
        dtype: dtype of the result, or a tuple of dtypes.
    """
    per_block = _tensors(per_block)
    axes = dict.fromkeys(per_block, 2)
    return _in_slices(function, per_block, _tensors(shared), slices, axes, 2, dtype)


def num_slices(elements):
    """Returns the number of slices for a number of elements: 1 for few, or for a tensor.

    Otherwise each slice has an eighth of that, because about six tensors of its size exist at once.
    """
    if not isinstance(elements, int) or elements < logits_at_once():
        return 1
    return ceil_div(elements, max(1, logits_at_once() // 8))


def slices_of_blocks(heads, logits):
    """Returns the number of slices of blocks for one slice of heads: 1 if all logits fit."""
    return 1 if _fit(logits) else num_slices(logits // _slices_of_heads(heads, logits))


def _in_slices(function, split, shared, slices, axes, axis, dtype):
    """Maps over slices of the axes `axes` of `split`; joins the results along `axis`."""
    if slices == 1:
        return function({**split, **shared})
    stacked = {name: _split_axis(x, slices, axes[name]) for name, x in split.items()}
    if "seed" in shared:
        stacked["seed"] = tf.random.split(shared.pop("seed"), slices)
    result = map_slices(lambda part, whole: function({**part, **whole}), stacked, shared, dtype)
    return tf.nest.map_structure(lambda x: _join_axis(x, axis), result)


def _tensors(arguments):
    return {name: tf.convert_to_tensor(x) for name, x in arguments.items() if x is not None}


def _slices_of_heads(heads, logits):
    """Number of slices of heads that keeps the logits of a slice under the limit, if possible."""
    return 1 if _fit(logits) else smallest_divisor(heads, ceil_div(logits, logits_at_once()))


def _fit(logits):
    """True if this many logits are computed at once, or if the number is a tensor."""
    most = min(LOGITS_OF_KERNELS, MAX_LOGITS) if runs_on_cpu_kernels() else MAX_LOGITS
    return not isinstance(logits, int) or logits <= most


def smallest_divisor(number, least):
    """Returns the smallest divisor of `number` that is at least `least`, or `number` itself."""
    return next(x for x in range(min(number, least), number + 1) if number % x == 0)


def _split_axis(x, slices, axis):
    """Splits an axis of `slices * n` and moves the number of the slice to the front."""
    shape = sizes(x)
    shape[axis : axis + 1] = [slices, shape[axis] // slices]
    return move_axis(tf.reshape(x, shape), axis, 0)  # [slices, ..., n, ...]


def _join_axis(x, axis):
    """Inverts `_split_axis`."""
    x = move_axis(x, 0, axis)
    shape = sizes(x)
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return tf.reshape(x, shape)
