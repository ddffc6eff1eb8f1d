"""Calls of layers that store only their inputs for the gradient and recompute the rest."""

import keras
import tensorflow as tf

from rt_keras.keras_internals import attach_mask, mask_of


def rematerialize(layer, function, tensors):
    """Returns the output of a layer's function, which the gradient computes a second time.

    Only the inputs of the function are kept in memory. Both computations use the same random
    numbers. Losses and statistics count once.

    Args:
        layer: a built layer that owns all variables used by the function.
        function: takes `tensors` as keyword arguments and returns one tensor.
        tensors: dictionary of tensors; values may be None. Gradients flow to floating-point
            tensors.

    Returns:
        The output of the function.

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 3.
    """
    floats = {name: x for name, x in tensors.items() if x is not None and x.dtype.is_floating}
    masks = {name: mask_of(x) for name, x in floats.items()}
    variables, others = layer.trainable_variables, layer.non_trainable_variables
    # Under a mixed policy, a variable converts to the compute dtype; the cast reverts this.
    before = [tf.cast(x, x.dtype) for x in others]

    def run(inputs, state):
        given = dict(zip(floats, inputs))
        for name, mask in masks.items():
            if mask is not None:
                attach_mask(given[name], mask)
        values = [*zip(variables, inputs[len(floats) :]), *zip(others, state)]
        with keras.StatelessScope(values, collect_losses=True) as scope:
            output = function(**{**tensors, **given})
        return [output, *scope.losses], scope

    @tf.custom_gradient
    def computed(*inputs):
        # Also delayed in the forward pass, or the dropout masks of all layers are drawn at once.
        state = delay(inputs[0], before)
        results, scope = run(inputs, state)
        for variable, value in zip(others, state):
            now = scope.get_current_value(variable)
            if now is not value:
                variable.assign(now)

        def gradient(*upstream):
            count = len(floats)
            again = [*delay(upstream[0], inputs[:count]), *inputs[count:]]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(again)
                # From the same state, so that the same random numbers are drawn again.
                recomputed, _ = run(again, delay(upstream[0], state))
            return tape.gradient(recomputed, again, upstream)

        return results, gradient

    output, *losses = computed(*floats.values(), *map(tf.convert_to_tensor, variables))
    for loss in losses:
        layer.add_loss(loss)
    return output


def delay(upstream, tensors):
    """Returns the same tensors, available only after `upstream`.

    Otherwise a compiler would recognize them as equal to the original ones and keep intermediate
    results instead of recomputing them.
    """
    element = upstream[(0,) * upstream.shape.rank]
    # No compiler can know that this is False.
    missing = tf.math.is_nan(element)
    return [tf.where(missing, tf.zeros_like(x), x) for x in tensors]
