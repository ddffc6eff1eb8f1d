"""Reversible blocks, whose gradient needs no stored inputs."""

import keras
import tensorflow as tf

from rt_keras.layers.rematerialize import (
    call_stateless,
    delay,
    delay_state,
    read_state,
    write_state,
)
from rt_keras.layers.same_shape import SameShape
from rt_keras.layers.saved_arguments import with_layers


@keras.saving.register_keras_serializable(package="rt_keras")
class ReversibleBlocks(SameShape):
    """A stack of `TransformerBlock`s on two streams, whose memory is independent of their number.

    ```
    x1 = x2 = x
    x1 = x1 + attention(x2);  x2 = x2 + feed_forward(x1)     for each block
    output = (x1 + x2) / 2
    ```

    The backward pass recovers a block's inputs from its outputs as x2 - feed_forward(x1) and x1 -
    attention(x2), and computes each block a second time. The gradients equal those of stored inputs
    up to rounding. The streams are float32 even under `mixed_bfloat16`.

    Args:
        blocks: list of pre-norm `TransformerBlock`s without cross-attention.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        padding_mask: bool or int `[batch, length]`, 0 for padding. Defaults to `mask`.
        use_causal_mask: bool, whether positions attend to no later position.
        training: bool, whether to apply dropout and collect statistics of routing heads.
        mask: the mask of `inputs`, set by Keras.

    Returns:
        `[batch, length, width]`.

    Raises:
        ValueError: if a block is post-norm or has cross-attention.

    Source: Gomez et al. 2017, The Reversible Residual Network, section 3; Kitaev et al. 2020,
    Reformer, section 3.

    >>> from rt_keras.layers import LocalHeads, TransformerBlock
    >>> blocks = [TransformerBlock([LocalHeads(2, 16)], intermediate_dim=64) for _ in range(3)]
    >>> ReversibleBlocks(blocks)(keras.random.normal([1, 50, 32]), use_causal_mask=True).shape
    TensorShape([1, 50, 32])
    """

    def __init__(self, blocks, **kwargs):
        super().__init__(**kwargs)
        for block in blocks:
            if block.cross_attention is not None:
                raise ValueError(
                    "Reversible blocks cannot attend to an encoder. Received a block with "
                    "cross_head_groups."
                )
            if not block.normalize_first:
                raise ValueError(
                    "Reversible blocks must be pre-norm, without operations after the residual. "
                    "Received a block with normalize_first=False."
                )
        self.blocks = list(blocks)

    def build(self, input_shape):
        for block in self.blocks:
            if not block.built:
                block.build(input_shape)
        self.built = True

    def call(self, inputs, padding_mask=None, use_causal_mask=False, training=None, mask=None):
        options = {
            "padding_mask": mask if padding_mask is None else padding_mask,
            "use_causal_mask": use_causal_mask,
            "training": training,
        }
        steps = [(block, step) for block in self.blocks for step in block.branches(**options)]
        streams, losses = reversible(steps, *self.split(inputs))
        for loss in losses:
            self.add_loss(loss)
        return self.join(streams)

    def split(self, x):
        """Returns the two streams that start from a tensor `[batch, length, width]`."""
        x = tf.cast(x, self.variable_dtype)
        return x, x

    def join(self, streams):
        """Returns the output, the mean of the last two streams."""
        return tf.cast((streams[0] + streams[1]) / 2, self.compute_dtype)

    def compute_output_spec(self, inputs, *args, **kwargs):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    @classmethod
    def from_config(cls, config):
        return cls(**with_layers(config, "blocks"))


def reversible(steps, first, second):
    """Computes two streams after several steps, which map (a, b) to (b, a + step(b)).

    Gradients flow only to both streams and to the variables of the layers.

    Args:
        steps: list of pairs of a built layer and a function of b that uses only the variables of
            that layer.
        first: tensor, a of the first step.
        second: tensor of the same shape, b of the first step.

    Returns:
        The pair of streams, and the list of losses that layers added.
    """
    layers = list(dict.fromkeys(layer for layer, _ in steps))
    weights = {layer: layer.trainable_variables for layer in layers}
    # Read outside: tf.custom_gradient requires gradients for every variable that is read inside.
    states_before = {layer: read_state(layer) for layer in layers}

    def run(layer, step, b, values, state):
        pairs = list(zip(weights[layer], values[layer]))
        return call_stateless(lambda: tf.cast(step(b), b.dtype), pairs, state)

    @tf.custom_gradient
    def computed(a, b, *flat):
        values = dict(zip(layers, tf.nest.pack_sequence_as([weights[x] for x in layers], flat)))
        now, changed = dict(states_before), {layer: {} for layer in layers}
        states, losses = [], []
        for layer, step in steps:
            state = delay_state(corner(b), now[layer])
            (output, *found), changes = run(layer, step, b, values, state)
            changed[layer] |= changes
            now[layer] = now[layer] | changes
            states.append(state)
            losses.append(found)
            a, b = b, apart(a + output)
        for changes in changed.values():
            write_state(changes)

        def gradient(of_a, of_b, *of_flat_losses):
            of_losses = tf.nest.pack_sequence_as(losses, of_flat_losses)
            x, y = a, b
            of_values = {layer: [None] * len(weights[layer]) for layer in layers}
            for (layer, step), state, upstream in list(zip(steps, states, of_losses))[::-1]:
                signal = corner(of_b)
                (x,) = delay(signal, [x])
                inputs = [x, *values[layer]]
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(inputs)
                    outputs, _ = run(layer, step, x, values, delay_state(signal, state))
                of_x, *found = tape.gradient(outputs, inputs, [of_b, *upstream])
                of_values[layer] = [_sum(*pair) for pair in zip(of_values[layer], found)]
                x, y = apart(y - outputs[0]), x
                of_a, of_b = of_b, _sum(of_a, of_x)
            return of_a, of_b, *tf.nest.flatten([of_values[layer] for layer in layers])

        return [a, b, *tf.nest.flatten(losses)], gradient

    values = [tf.convert_to_tensor(x) for layer in layers for x in weights[layer]]
    first, second, *losses = computed(first, second, *values)
    return (first, second), losses


def _sum(x, y):
    """Returns the sum of two gradients, either of which may be None for zero."""
    return x if y is None else y if x is None else x + y


def apart(x):
    """Returns the same tensor, stored separately.

    Otherwise a compiler recomputes a stream at each of its uses from the previous summands, and
    keeps all of these in memory.
    """
    missing = tf.math.is_nan(x[(0,) * x.shape.rank])
    return tf.cond(missing, lambda: x + 1, lambda: x)


def corner(x):
    """Returns one entry of a tensor, to wait for, without keeping the tensor in memory."""
    return apart(x[(slice(1),) * x.shape.rank])
