"""Bounding memory: a function mapped over slices one after another, recomputed in the gradient."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, move_axis, size

# Attention logits, in elements: up to `MAX_LOGITS` (768 MiB in float32) all are made at once, and
# kept for the gradient. Where there are more, `LOGITS_AT_ONCE` (128 MiB) are, and made anew for
# the gradient, which costs a third more time.
MAX_LOGITS = 3 * 2**26
LOGITS_AT_ONCE = 2**25


def map_slices(function, sliced, whole, dtype):
    """Maps `function` over the first axis of some tensors, one slice in memory at a time.

    The gradient recomputes each slice: nothing but the arguments is kept for it.

    Args:
        function: takes a dictionary with one slice of each entry of `sliced`, and `whole`;
            returns one tensor, or a tuple of them.
        sliced: dictionary of tensors whose first axes have one static size.
        whole: dictionary of tensors that every slice sees whole. One of which a slice does nothing
            but `tf.gather` rows costs the gradient no more than these rows.
        dtype: of the result, or a tuple of them.

    Returns:
        The results, stacked along a new first axis.
    """
    count = next(iter(sliced.values())).shape[0]

    def arguments_of(flat, index):
        values = [x[index] for x in flat[: len(sliced)]]
        return dict(zip(sliced, values)), dict(zip(whole, flat[len(sliced) :]))

    @tf.custom_gradient
    def mapped(*flat):
        result = tf.map_fn(
            lambda index: function(*arguments_of(flat, index)),
            tf.range(count),
            fn_output_signature=dtype,
            parallel_iterations=1,
        )
        return result, lambda *upstream: _gradients(flat, upstream)

    def _gradients(flat, upstream):
        learnt = [i for i, x in enumerate(flat) if x.dtype.is_floating]
        of_slices = [i for i in learnt if i < len(sliced)]
        of_whole = [i for i in learnt if i >= len(sliced)]

        def step(index, stacks, sums):
            part, every = arguments_of(flat, index)
            inputs = [*part.values(), *every.values()]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([inputs[i] for i in learnt])
                result = function(part, every)
            found = dict(
                zip(
                    learnt,
                    tape.gradient(
                        result,
                        [inputs[i] for i in learnt],
                        [x[index] for x in upstream],
                        unconnected_gradients=tf.UnconnectedGradients.ZERO,
                    ),
                )
            )
            stacks = [stack.write(index, found[i]) for stack, i in zip(stacks, of_slices)]
            return index + 1, stacks, [_plus(total, found[i]) for total, i in zip(sums, of_whole)]

        stacks = [tf.TensorArray(flat[i].dtype, count) for i in of_slices]
        sums = [tf.zeros_like(flat[i]) for i in of_whole]
        _, stacks, sums = tf.while_loop(
            lambda index, *_: index < count,
            step,
            (tf.constant(0), stacks, sums),
            parallel_iterations=1,
            maximum_iterations=count,
        )
        found = dict(zip(of_slices, [stack.stack() for stack in stacks]))
        found.update(zip(of_whole, sums))
        return [found.get(i) for i in range(len(flat))]

    return mapped(*sliced.values(), *whole.values())


def _plus(total, gradient):
    """Their sum, where the gradient may be of some rows only."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, None], gradient.values)
    return total + gradient


def over_heads(function, per_head, shared, logits, dtype):
    """Runs an attention function over all heads, a few at a time where memory asks for it.

    Args:
        function: takes a dictionary of arguments, with any number of heads, and returns
            `[batch, heads, length, depth]`.
        per_head: arguments with the heads on axis 1 (`[batch, heads, ...]`), or on axis 0
            for those whose name is in `PER_HEAD_WEIGHTS`, where a size of 1 is for all heads;
            None where there is none.
        shared: arguments that are the same for all heads, or None.
        logits: attention logits for all heads, an int, or a tensor where shapes are not
            static: then all heads go at once.
        dtype: of the result.
    """
    per_head, shared = _tensors(per_head), _tensors(shared)
    heads = per_head["query"].shape[1]
    for name in PER_HEAD_WEIGHTS:
        if name in per_head and per_head[name].shape[0] != heads:
            shared[name] = per_head.pop(name)
    axes = {name: 0 if name in PER_HEAD_WEIGHTS else 1 for name in per_head}
    return _over_parts(function, per_head, shared, _num_chunks(heads, logits), axes, 1, dtype)


def over_blocks(function, per_block, shared, slices, dtype):
    """Runs a function over all blocks, a slice of them at a time.

    Args:
        function: takes a dictionary of arguments, with any number of blocks, and returns
            `[batch, heads, blocks, ...]`, or a tuple of such.
        per_block: arguments `[batch, heads, blocks, ...]`, or None.
        shared: arguments that are the same for all blocks, or None.
        slices: how many slices, a divisor of the number of blocks: see `num_slices`.
        dtype: of the result, or a tuple of them.
    """
    per_block = _tensors(per_block)
    axes = dict.fromkeys(per_block, 2)
    return _over_parts(function, per_block, _tensors(shared), slices, axes, 2, dtype)


def num_slices(count):
    """Slices for what makes `count` elements: 1 below `LOGITS_AT_ONCE`, or where it is a tensor.

    Else an eighth of that a slice: half a dozen tensors of that size exist at once.
    """
    if not isinstance(count, int) or count < LOGITS_AT_ONCE:
        return 1
    return ceil_div(count, max(1, LOGITS_AT_ONCE // 8))


def slices_of_heads(heads, logits):
    """Slices for the heads that `over_heads` takes at once: 1 where it bounds memory alone."""
    return 1 if _fit(logits) else num_slices(logits // _num_chunks(heads, logits))


def _over_parts(function, split, shared, parts, axes, axis, dtype):
    """Maps over parts of the axes `axes` of `split`; joins the results along `axis`."""
    if parts == 1:
        return function({**split, **shared})
    sliced = {name: _split_axis(x, parts, axes[name]) for name, x in split.items()}
    if "seed" in shared:
        sliced["seed"] = tf.random.split(shared.pop("seed"), parts)
    result = map_slices(lambda part, whole: function({**part, **whole}), sliced, shared, dtype)
    return tf.nest.map_structure(lambda x: _join_axis(x, axis), result)


def _tensors(arguments):
    return {name: tf.convert_to_tensor(x) for name, x in arguments.items() if x is not None}


PER_HEAD_WEIGHTS = (
    "centroids",
    "load_bias",
    "projections",
    "relative_embeddings",
    "relative_values",
    "routing_seed",
)


def _num_chunks(heads, logits):
    """How many chunks of heads bring the logits of a chunk under the limit, if any number does."""
    return 1 if _fit(logits) else smallest_divisor(heads, ceil_div(logits, LOGITS_AT_ONCE))


def _fit(logits):
    """Whether so many are made at once; taken for granted where the number is a tensor."""
    return not isinstance(logits, int) or logits <= MAX_LOGITS


def smallest_divisor(number, least):
    """The smallest divisor of a number that is at least `least`, or the number itself."""
    return next(x for x in range(min(number, least), number + 1) if number % x == 0)


def _split_axis(x, parts, axis):
    """Splits an axis into `parts`, and puts them first."""
    shape = [size(x, i) for i in range(x.shape.rank)]
    shape[axis : axis + 1] = [parts, shape[axis] // parts]
    return move_axis(tf.reshape(x, shape), axis, 0)


def _join_axis(x, axis):
    """The way back."""
    x = move_axis(x, 0, axis)
    shape = [size(x, i) for i in range(x.shape.rank)]
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return tf.reshape(x, shape)
