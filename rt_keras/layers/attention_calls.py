"""Looking inside a model: the weights and clusters of its heads on a batch."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from rt_keras.layers.attention_scores import check_scores, outputs_for
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.routing import nearest_centroid, normalize

# How many keys' weights are computed at a time, to bound memory.
KEYS_AT_ONCE = 512


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """One call of a `MultiHeadAttention`, as `attention_calls` keeps it.

    Args:
        layer: the `MultiHeadAttention`.
        groups: list of its head groups, each with the (query, value, key) of its heads and the
            dictionary of its other arguments.
    """

    layer: MultiHeadAttention
    groups: list

    @property
    def name(self):
        """The layer, with the block that it is in."""
        return "/".join(self.layer.path.split("/")[-2:])

    @property
    def kinds(self):
        """The class name of each head's group, such as "RoutingHeads"."""
        return [type(group).__name__ for group, *_ in self.groups for _ in range(group.num_heads)]

    def weights(self, count=None):
        """The attention weights of all heads, some keys after the others.

        Attention is linear in the values: weights are its outputs for one-hot values.

        Args:
            count: int, for how many of the first keys; None, the default, for all.

        Yields:
            float32 `[batch, heads, queries, keys]` for the next keys, at most 512. They sum to 1
            over all keys; to 0 for a query that sees none; and to less than 1 for one that is in
            several clusters of a head and sees no key in some of them, or to persistent keys.

        Raises:
            ValueError: if a group has no weights of each key, such as `CompressiveHeads`.
        """
        length = size(self.groups[0][1][1], 2)
        count = length if count is None else min(count, length)
        width = self._width() or min(KEYS_AT_ONCE, count)
        of_zeros = self._of_zeros(width)
        for start in range(0, count, width):
            outputs = self._outputs(tf.one_hot(tf.range(length) - start, width))
            yield (outputs - of_zeros)[..., : count - start]

    def sums(self):
        """The sums of the attention weights over all keys: the outputs for values of 1.

        Returns:
            float32 `[batch, heads, queries]`.
        """
        width = self._width() or 1
        ones = tf.ones([size(self.groups[0][1][1], 2), width])
        return (self._outputs(ones) - self._of_zeros(width))[..., 0]

    def _width(self):
        """The depth of the values, where a group adds vectors of that depth to them."""
        if any(group.adds_to_values for group, *_ in self.groups):
            return self.groups[0][1][1].shape[-1]
        return None

    def _of_zeros(self, width):
        """The outputs of all heads for values of 0: those vectors, which are no weights."""
        if self._width() is None:
            return 0.0
        return self._outputs(tf.zeros([size(self.groups[0][1][1], 2), width]))

    def _outputs(self, values):
        """The outputs of all heads for values `[keys, width]` of every head and sequence."""
        check_scores(group for group, *_ in self.groups)
        outputs = [outputs_for(values, *group) for group in self.groups]
        return tf.cast(tf.concat(outputs, axis=1), tf.float32)

    def clusters(self):
        """The nearest centroid of each query and key, in the heads that have centroids.

        Returns:
            A list, for each group of `CentroidHeads`, of tuples of the group, the number of its
            first head in the layer, and a dictionary from "queries" and, if they are clustered too,
            "keys" to int arrays `[batch, heads, length]`, -1 for padding.
        """
        found, first = [], 0
        for group, (query, _, key), options in self.groups:
            if group.has_centroids:
                masks = {name: options[name] for name in ("query_mask", "key_mask")}
                sources = group.clustered_vectors(query=query, key=key, **masks)
                clusters = {name: _nearest(group, *source) for name, source in sources.items()}
                found.append((group, first, clusters))
            first += group.num_heads
        return found


def _nearest(group, vectors, mask):
    centroids = tf.convert_to_tensor(group.centroids)
    vectors = repeat_heads(vectors, group.num_heads)
    clusters = nearest_centroid(normalize(vectors), centroids, group.load_bias).numpy()
    return clusters if mask is None else np.where(np.asarray(mask)[:, None], clusters, -1)


def attention_calls(model, inputs):
    """Runs a model on a batch and keeps what its attention is called with.

    Args:
        model: a model with `MultiHeadAttention` at any depth.
        inputs: a batch, not symbolic, that the model is called on.

    Returns:
        A list of `AttentionCall`, in the order of the calls.

    >>> import keras
    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> inputs = keras.Input([12, 8])
    >>> attention = MultiHeadAttention([LocalHeads(1, 4), RoutingHeads(1, 2, 4)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> (call,) = attention_calls(model, keras.random.normal([1, 12, 8]))
    >>> call.kinds, [weights.shape.as_list() for weights in call.weights()]
    (['LocalHeads', 'RoutingHeads'], [[1, 2, 12, 12]])
    """
    with observe_attention(model) as found:
        model(inputs, training=False)
    return found


@contextlib.contextmanager
def observe_attention(model):
    """Keeps what the attention inside a model is called with.

    Args:
        model: a model with `MultiHeadAttention` at any depth.

    Yields:
        A list, to which each call adds an `AttentionCall`.
    """
    found, layers = [], list(dict.fromkeys(layers_inside(model, MultiHeadAttention)))
    try:
        for layer in layers:
            layer.observer = lambda groups, layer=layer: found.append(AttentionCall(layer, groups))
        yield found
    finally:
        for layer in layers:
            layer.observer = None
