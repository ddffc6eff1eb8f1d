"""Inspection of attention: recorded calls, their attention weights and clusters."""

import contextlib
import contextvars
import dataclasses
import functools
import typing

import keras
import numpy as np
import tensorflow as tf

from rt_keras.keras_internals import all_layers_of
from rt_keras.layers.attention_inputs import AttentionInputs
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.nearest.assign import nearest_centroid, normalize

# Number of keys whose weights are computed at a time, to limit memory.
KEYS_AT_ONCE = 512

# Functions that receive each attention layer called in this thread, with the `GroupCall`s.
OBSERVERS = contextvars.ContextVar("observers", default=())


class GroupCall(typing.NamedTuple):
    """The arguments of the call of one head group."""

    group: typing.Any
    # (query, value, key) of its heads, [batch, heads, length, depth]; the key may be None.
    arguments: tuple
    # The keyword arguments.
    options: dict

    def outputs_for(self, values):
        """Returns the outputs `[batch, heads, queries, width]` for other values `[keys, width]`."""
        query, value, key = self.arguments
        shape = [size(value, 0), size(value, 1), size(values, 0), size(values, 1)]
        same = tf.broadcast_to(tf.cast(values, value.dtype), shape)
        # In training, routing heads would count the batch a second time.
        return self.group(query, same, key, **self.options, training=False)

    def weights(self, start, width):
        """Returns the attention weights of keys from `start`, `[batch, heads, queries, width]`.

        Attention is linear in the values, so the weights are the outputs for one-hot values. What a
        group adds to the values has their depth, which `width` must then equal.
        """
        one_hot = tf.one_hot(tf.range(size(self.arguments[1], 2)) - start, width)
        weights = self.outputs_for(one_hot)
        if not self.group.abilities.linear:
            weights -= self.outputs_for(tf.zeros_like(one_hot))
        return weights


def check_scores(head_groups):
    """Raises a ValueError if a group does not have attention weights for single keys."""
    for group in head_groups:
        if not group.abilities.weighted:
            raise ValueError(
                f"{group.kind} have no attention weights for single keys, which "
                "return_attention_scores=True and attention maps need."
            )


def attention_scores(call):
    """Returns the attention weights of a `GroupCall`, `[batch, heads, queries, keys]`."""
    query, value, _ = call.arguments
    length, width = size(value, 2), value.shape[3]
    if call.group.abilities.linear:
        return call.weights(0, length)
    # At least one iteration, so that shapes are known.
    starts = tf.range(0, tf.maximum(length, 1), width)
    signature = tf.TensorSpec([*query.shape[:3], width], value.dtype)
    scores = tf.map_fn(lambda x: call.weights(x, width), starts, fn_output_signature=signature)
    # [steps, batch, heads, queries, width] -> [batch, heads, queries, keys]
    scores = tf.transpose(scores, [1, 2, 3, 0, 4])
    shape = [size(query, 0), call.group.num_heads, size(query, 2), size(starts, 0) * width]
    return tf.reshape(scores, shape)[..., :length]


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """One call of a `MultiHeadAttention`, as recorded by `attention_calls`.

    Args:
        layer: the `MultiHeadAttention`.
        groups: list of the `GroupCall`s of its head groups.
    """

    layer: keras.layers.Layer
    groups: list

    @property
    def name(self):
        """The name of the layer and of the block that contains it."""
        return "/".join(self.layer.path.split("/")[-2:])

    @property
    def kinds(self):
        """The kind of each head, such as "Window"."""
        return [call.group.kind for call in self.groups for _ in range(call.group.num_heads)]

    def weights(self, count=None):
        """Yields the attention weights of all heads, for a chunk of keys at a time.

        Args:
            count: int or None, number of first keys to include. None for all keys. Defaults to
                None.

        Yields:
            float32 `[batch, heads, queries, keys]` for the next keys, at most 512. The weights of a
            query sum to 1 over all keys. The sum is 0 for a query without visible keys, and below 1
            for a query that is in several clusters of a head and has no visible keys in some of
            them, or that attends to persistent keys.

        Raises:
            ValueError: if a group, such as `GatedDeltaHeads`, has no weights for single keys.
        """
        check_scores(call.group for call in self.groups)
        value = self.groups[0].arguments[1]
        length = size(value, 2)
        count = length if count is None else min(count, length)
        width = min(KEYS_AT_ONCE, count)
        if any(not call.group.abilities.linear for call in self.groups):
            width = value.shape[3]

        # Traced once: heads may loop over many small blocks, slowly in eager execution.
        @functools.partial(tf.function, autograph=False)
        def weights_from(start):
            weights = [call.weights(start, width) for call in self.groups]
            return tf.cast(tf.concat(weights, axis=1), tf.float32)

        for start in range(0, count, width):
            yield weights_from(tf.constant(start))[..., : count - start]

    def sums(self):
        """Returns the sums of the attention weights over all keys, `[batch, heads, queries]`."""
        return tf.add_n([tf.reduce_sum(weights, axis=-1) for weights in self.weights()])

    def clusters(self):
        """Returns the nearest centroid of each query and key, for heads with centroids.

        Returns:
            A list with a tuple for each group with centroids: the group, the number of its first
            head in the layer, and a dictionary with "queries" and, if keys are clustered
            separately, "keys". The values are int arrays `[batch, heads, length]`, -1 for padding.
        """
        clusters, first = [], 0
        for group, (query, value, key), options in self.groups:
            if group.centroids is not None:
                masks = {x: options.get(x) for x in ("query_mask", "key_mask", "documents")}
                inputs = AttentionInputs(query, key, value, **masks)
                sources = group.clustered_vectors(inputs)
                nearest = {name: _nearest(group, *source) for name, source in sources.items()}
                clusters.append((group, first, nearest))
            first += group.num_heads
        return clusters


def _nearest(group, vectors, mask):
    centroids = tf.convert_to_tensor(group.centroids.centroids)
    vectors = repeat_heads(vectors, group.num_heads)
    clusters = nearest_centroid(normalize(vectors), centroids, group.centroids.load_bias).numpy()
    return clusters if mask is None else np.where(np.asarray(mask)[:, None], clusters, -1)


def attention_calls(model, inputs):
    """Runs a model on a batch and records the inputs of its attention layers.

    Args:
        model: a model that contains `MultiHeadAttention` layers at any depth.
        inputs: a batch of inputs of the model, such as a tensor `[batch, length]`; not symbolic.

    Returns:
        A list of `AttentionCall`, in the order of the calls.

    Source: ours.

    >>> from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads
    >>> inputs = keras.Input([12, 8])
    >>> attention = MultiHeadAttention([LocalHeads(1, 4), RoutingHeads(1, 2, 4)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> (call,) = attention_calls(model, keras.random.normal([1, 12, 8]))
    >>> call.kinds, [weights.shape.as_list() for weights in call.weights()]
    (['Window', "Cluster of assignment 'nearest'"], [[1, 2, 12, 12]])
    """
    with observe_attention(model) as calls:
        model(inputs, training=False)
    return calls


@contextlib.contextmanager
def observe_attention(model):
    """Records the inputs of the attention layers of a model, in calls of this thread.

    Args:
        model: a model that contains `MultiHeadAttention` layers at any depth, or such a layer.

    Yields:
        A list, to which each call appends an `AttentionCall`.
    """
    calls, layers = [], {id(layer) for layer in (model, *all_layers_of(model))}

    def observe(layer, groups):
        if id(layer) in layers:
            calls.append(AttentionCall(layer, groups))

    token = OBSERVERS.set((*OBSERVERS.get(), observe))
    try:
        yield calls
    finally:
        OBSERVERS.reset(token)
