"""Calls of layers that keep nothing but their inputs for the gradient, which computes them anew."""

import keras
import tensorflow as tf


def rematerialize(layer, function, tensors):
    """The output of a layer's function, which the gradient computes a second time.

    Of all that the function computes only its inputs stay in memory. What it draws at random is
    the same both times; what it adds to the losses and to statistics counts once.

    Args:
        layer: a built layer; all variables that the function uses are its own.
        function: takes `tensors` as keyword arguments, and returns one tensor.
        tensors: dictionary of tensors, or None. Gradients reach the floating ones.

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 3.
    """
    floats = {name: x for name, x in tensors.items() if x is not None and x.dtype.is_floating}
    masks = {name: getattr(x, "_keras_mask", None) for name, x in floats.items()}
    variables = layer.trainable_variables
    found = read_state(layer)

    def run(inputs, state):
        given = dict(zip(floats, inputs))
        for name, mask in masks.items():
            if mask is not None:
                given[name]._keras_mask = mask
        weights = zip(variables, inputs[len(floats) :])
        return call_stateless(lambda: function(**{**tensors, **given}), weights, state)

    @tf.custom_gradient
    def computed(*inputs):
        # After the first time too: the masks of all layers' dropout would else be drawn at once.
        state = state_after(inputs[0], found)
        results, changed = run(inputs, state)
        write_state(changed)

        def gradient(*upstream):
            count = len(floats)
            again = [*after(upstream[0], inputs[:count]), *inputs[count:]]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(again)
                recomputed, _ = run(again, state_after(upstream[0], state))
            return tape.gradient(recomputed, again, upstream)

        return results, gradient

    output, *losses = computed(*floats.values(), *map(tf.convert_to_tensor, variables))
    for loss in losses:
        layer.add_loss(loss)
    return output


def read_state(layer):
    """The state of a layer: `{id: (variable, value)}` of those that are not trained.

    The values of those that replicas sum up are 0.
    """
    return {
        # Cast, as under a mixed policy a variable gives another dtype than it has.
        id(x): (x, tf.zeros(x.shape, x.dtype) if x.aggregation == "sum" else tf.cast(x, x.dtype))
        for x in layer.non_trainable_variables
    }


def call_stateless(function, weights, state):
    """Calls a function with these values of variables, and leaves the variables as they are.

    Args:
        function: without arguments, returns one tensor.
        weights: pairs of a Keras variable and its value.
        state: what `read_state` gives.

    Returns:
        A list of the output and the losses that layers added, and what changed of the state.
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
    """Assigns what `call_stateless` says has changed."""
    for variable, value in changed.values():
        if variable.aggregation == "sum":
            variable.value.assign_add(value)
        else:
            variable.assign(value)


def after(upstream, tensors):
    """The same tensors, but not to be had before `upstream` is.

    A compiler that found them equal to the first ones would keep what it computed from those in
    the place of computing it again.
    """
    element = upstream[(0,) * upstream.shape.rank]
    # Which compiler could know that it is a number?
    missing = tf.math.is_nan(element)
    return [tf.where(missing, tf.zeros_like(x), x) for x in tensors]


def state_after(upstream, state):
    """The same of a state: what is drawn with a seed is drawn anew."""
    variables = [variable for variable, _ in state.values()]
    values = after(upstream, [value for _, value in state.values()])
    return dict(zip(state, zip(variables, values)))
