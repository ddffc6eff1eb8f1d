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
    variables = layer.trainable_variables
    found = read_state(layer)

    def run(inputs, state):
        given = dict(zip(floats, inputs))
        for name, mask in masks.items():
            if mask is not None:
                attach_mask(given[name], mask)
        weights = zip(variables, inputs[len(floats) :])
        return call_stateless(lambda: function(**{**tensors, **given}), weights, state)

    @tf.custom_gradient
    def computed(*inputs):
        # Also delayed in the forward pass, or the dropout masks of all layers are drawn at once.
        state = delay_state(inputs[0], found)
        results, changed = run(inputs, state)
        write_state(changed)

        def gradient(*upstream):
            count = len(floats)
            again = [*delay(upstream[0], inputs[:count]), *inputs[count:]]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(again)
                recomputed, _ = run(again, delay_state(upstream[0], state))
            return tape.gradient(recomputed, again, upstream)

        return results, gradient

    output, *losses = computed(*floats.values(), *map(tf.convert_to_tensor, variables))
    for loss in losses:
        layer.add_loss(loss)
    return output


def read_state(layer):
    """Returns the non-trainable variables of a layer, with their values.

    Args:
        layer: a built layer.

    Returns:
        Dictionary from a variable's id to the pair of the variable and its value.
    """
    return {
        # Under a mixed policy, a variable converts to the compute dtype; the cast reverts this.
        id(x): (x, tf.cast(x, x.dtype))
        for x in layer.non_trainable_variables
    }


def call_stateless(function, weights, state):
    """Calls a function with the given values of variables, without changing the variables.

    Args:
        function: a function without arguments that returns one tensor.
        weights: iterable of pairs of a Keras variable and its value.
        state: a dictionary returned by `read_state`.

    Returns:
        A list of the output and the losses that layers added, and a dictionary of the entries of
        `state` that changed, with their new values.
    """
    values = [*weights, *state.values()]
    with keras.StatelessScope(values, collect_losses=True) as scope:
        output = function()
    changed = {}
    for key, (variable, before) in state.items():
        now = scope.get_current_value(variable)
        if now is not before:
            changed[key] = variable, now
    return [output, *scope.losses], changed


def write_state(changed):
    """Assigns the changes returned by `call_stateless`."""
    for variable, value in changed.values():
        variable.assign(value)


def delay(upstream, tensors):
    """Returns the same tensors, available only after `upstream`.

    Otherwise a compiler would recognize them as equal to the original ones and keep intermediate
    results instead of recomputing them.
    """
    element = upstream[(0,) * upstream.shape.rank]
    # No compiler can know that this is False.
    missing = tf.math.is_nan(element)
    return [tf.where(missing, tf.zeros_like(x), x) for x in tensors]


def delay_state(upstream, state):
    """Returns the same state, delayed, so that the same random numbers are drawn again."""
    variables = [variable for variable, _ in state.values()]
    values = delay(upstream, [value for _, value in state.values()])
    return dict(zip(state, zip(variables, values)))
