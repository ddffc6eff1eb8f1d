"""The base class of sets of keys, which define the keys that a query attends to."""

import keras
import tensorflow as tf

from rt_keras.arguments import defaults_of
from rt_keras.layers.abilities import Abilities

# Entries of the configuration of every layer.
OF_LAYERS = ("name", "trainable", "dtype")


class KeySet(keras.layers.Layer):
    """Base class of sets of keys, the parts of a `rt_keras.layers.Heads` union.

    A set is a layer with its own weights, which its union builds. It computes attention to its keys
    in three ways: for a whole sequence, for the next positions of one (a chunk) and for the next
    position (a step). Each returns an output and, if `return_logsumexp`, the logsumexp of the
    logits, with which `Heads` joins several sets under one softmax.

    A subclass defines `abilities` and implements `attend`. If these are `cached`, it also
    implements `prefill_state` and `attend_step`, which is a chunk of one position by default; if
    they are `chunks`, `attend_chunk`; and if they are `across`, `attend_across`.

    Args:
        name: string. Defaults to None, for the name of the set's state.
        **kwargs: other base layer keyword arguments.

    Source: ours.

    >>> from rt_keras.layers.key_sets import Window
    >>> Window(64, look_back=2), Window(64).abilities.cached
    (Window(block_size=64, look_back=2), True)
    """

    # The name of the set's state in the cache of a union.
    state_name = None
    abilities = Abilities()
    # The `Centroids` of the set, and its `RelativePositions`.
    centroids = None
    positions = None
    # The largest distance of the keys that the set leaves to the window of its union; None if it
    # leaves out none. No query of a shorter sequence then sees a key of the set.
    furthest_left_out = None

    def __init__(self, name=None, **kwargs):
        super().__init__(name=name or self.state_name, **kwargs)

    def join(self, others, share_qk):
        """Prepares the set for a union; called once, by `Heads`.

        Args:
            others: list of the other sets of the union, whose keys the set may leave out.
            share_qk: bool, whether the queries of the union are also its keys.

        Raises:
            ValueError: if the set cannot be combined with one of the others.
        """

    def check_rotation(self, rotated_at):
        """Raises a ValueError if the set needs a rotary embedding and `rotated_at` is None."""

    def build(self, query_shape, value_shape):
        """Creates the weights.

        Args:
            query_shape: `(batch, heads, length, depth)`.
            value_shape: `(batch, key_heads, length, value_depth)`.
        """
        if self.positions is not None:
            self.positions.build(query_shape)
        self.built = True

    def is_out_of_reach(self, length):
        """Returns whether no query of a sequence of a known length sees a key of the set."""
        furthest = self.furthest_left_out
        return isinstance(length, int) and furthest is not None and length <= furthest + 1

    def position_table(self):
        """Returns the vectors of relative positions, `[heads, 2 m + 1, depth]`, or None."""
        return None if self.positions is None else self.positions.table()

    def place(self, query, key):
        """Returns queries and keys in the form that the ops expect with relative positions."""
        return (query, key) if self.positions is None else self.positions.place(query, key)

    def attend(self, inputs, return_logsumexp):
        """Computes attention of all positions of a sequence.

        Args:
            inputs: `AttentionInputs` of the whole sequence.
            return_logsumexp: bool, whether to also return the logsumexp of the logits.

        Returns:
            `[batch, heads, length, value_depth]`, and with `return_logsumexp` also
            `[batch, heads, length]`.
        """
        raise NotImplementedError

    def attend_chunk(self, inputs, state, return_logsumexp):
        """Computes attention of the next positions from the state of the previous ones.

        Args:
            inputs: `AttentionInputs` of the next positions.
            state: the previous state of the set, a dictionary of tensors.
            return_logsumexp: bool, see `attend`.

        Returns:
            The result of `attend`, and the new state of the set.
        """
        raise NotImplementedError

    def attend_step(self, inputs, state, return_logsumexp):
        """Computes attention of one position from the previous state; see `attend_chunk`."""
        return self.attend_chunk(inputs, state, return_logsumexp)

    def prefill_state(self, inputs, max_length):
        """Returns the state after the first `inputs.count` positions.

        Args:
            inputs: `AttentionInputs` of the first positions. Those after `count` may have any
                content.
            max_length: int, final number of positions.

        Returns:
            A dictionary of tensors with the batch on axis 0; empty for sets without a state.
        """
        raise NotImplementedError

    def attend_across(self, inputs):
        """Computes attention of `inputs.position` to all keys of another sequence."""
        raise NotImplementedError

    def cross_length(self, length, keys):
        """Returns the length to which queries of cross-attention are padded."""
        return length

    def keys_read(self, causal):
        """Returns the maximum number of keys of the set that a query attends to.

        Args:
            causal: bool, whether queries attend to no later key.

        Returns:
            An int, or None (the default) if the number depends on the text or its length.
        """
        return None

    def clustered_vectors(self, inputs):
        """Returns the vectors that belong to clusters, for sets with centroids.

        Args:
            inputs: `AttentionInputs` of a whole sequence or a chunk.

        Returns:
            Dictionary with "queries" and, if keys are clustered separately, "keys": pairs of
            vectors `[batch, heads or key_heads, length, depth]`, before normalization, and their
            mask.
        """
        raise NotImplementedError

    def describe(self):
        """Returns the name of the set in messages."""
        return type(self).__name__

    def get_build_config(self):
        # A loaded set must not be built twice: its union builds it.
        return None

    def __repr__(self):
        """Returns the set with its options that differ from their defaults."""
        defaults, config = defaults_of(type(self)), self.get_config()
        options = {name: x for name, x in config.items() if name not in OF_LAYERS}
        shown = [f"{name}={x!r}" for name, x in options.items() if x != defaults[name]]
        return f"{type(self).__name__}({', '.join(shown)})"


def only_output(result, return_logsumexp):
    """Returns the result of an op that always computes the logsumexp, without it if not wanted."""
    return result if return_logsumexp else result[0]


def positions_of_chunk(inputs, length):
    """Returns the positions of a chunk, int `[batch or 1, length]`."""
    return tf.reshape(inputs.position, [-1, 1]) + tf.range(length)
