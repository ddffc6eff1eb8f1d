"""Inspection of a model: the attention weights and clusters of its heads on a batch."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from rt_keras.layers.attention_scores import check_scores, outputs_for
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.multi_head_attention import OBSERVERS, MultiHeadAttention
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.nearest.assign import nearest_centroid, normalize

# Number of keys whose weights are computed at a time, to limit memory.
KEYS_AT_ONCE = 512


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """One call of a `MultiHeadAttention`, as recorded by `attention_calls`.

    Args:
        layer: the `MultiHeadAttention`.
        groups: list of its head groups, each with the (query, value, key) of its heads and the
            dictionary of its other arguments.
    """

    layer: MultiHeadAttention
    groups: list

    @property
    def name(self):
        """The name of the layer and of the block that contains it."""
        return "/".join(self.layer.path.split("/")[-2:])

    @property
    def kinds(self):
        """The class name of each head's group, such as "RoutingHeads"."""
        return [type(group).__name__ for group, *_ in self.groups for _ in range(group.num_heads)]

    def weights(self, count=None):
        """Yields the attention weights of all heads, for a chunk of keys at a time.

        Attention is linear in the values, so the weights are its outputs for one-hot values.

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
        length = size(self.groups[0][1][1], 2)
        count = length if count is None else min(count, length)
        width = self._width() or min(KEYS_AT_ONCE, count)
        of_zeros = self._of_zeros(width)
        # Traced once: heads may loop over many small blocks, slowly in eager execution.
        outputs_for_values = tf.function(self._outputs, autograph=False)
        for start in range(0, count, width):
            outputs = outputs_for_values(tf.one_hot(tf.range(length) - start, width))
            yield (outputs - of_zeros)[..., : count - start]

    def sums(self):
        """Returns the sums of the attention weights over all keys: the outputs for values of 1.

        Returns:
            float32 `[batch, heads, queries]`.
        """
        width = self._width() or 1
        ones = tf.ones([size(self.groups[0][1][1], 2), width])
        return (self._outputs(ones) - self._of_zeros(width))[..., 0]

    def _width(self):
        """Returns the depth of the values if a group adds vectors of that depth to them."""
        if any(group.adds_to_values for group, *_ in self.groups):
            return self.groups[0][1][1].shape[-1]
        return None

    def _of_zeros(self, width):
        """Returns the outputs of all heads for values of 0: those added vectors."""
        if self._width() is None:
            return 0.0
        return self._outputs(tf.zeros([size(self.groups[0][1][1], 2), width]))

    def _outputs(self, values):
        """Returns the outputs of all heads, given values `[keys, width]` for all of them."""
        check_scores(group for group, *_ in self.groups)
        outputs = [outputs_for(values, *group) for group in self.groups]
        return tf.cast(tf.concat(outputs, axis=1), tf.float32)

    def clusters(self):
        """Returns the nearest centroid of each query and key, for heads with centroids.

        Returns:
            A list with a tuple for each group with centroids: the group, the number of its first
            head in the layer, and a dictionary with "queries" and, if keys are clustered
            separately, "keys". The values are int arrays `[batch, heads, length]`, -1 for padding.
        """
        found, first = [], 0
        for group, (query, _, key), options in self.groups:
            if group.has_centroids:
                masks = {x: options.get(x) for x in ("query_mask", "key_mask", "documents")}
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
    """Runs a model on a batch and records the inputs of its attention layers.

    Args:
        model: a model that contains `MultiHeadAttention` layers at any depth.
        inputs: a batch of inputs of the model, such as a tensor `[batch, length]`; not symbolic.

    Returns:
        A list of `AttentionCall`, in the order of the calls.

    Source: ours.

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
    """Records the inputs of the attention layers of a model, in calls of this thread.

    Args:
        model: a model that contains `MultiHeadAttention` layers at any depth.

    Yields:
        A list, to which each call appends an `AttentionCall`.
    """
    found, layers = [], layers_inside(model, MultiHeadAttention)

    def observe(layer, groups):
        if layer in layers:
            found.append(AttentionCall(layer, groups))

    token = OBSERVERS.set((*OBSERVERS.get(), observe))
    try:
        yield found
    finally:
        OBSERVERS.reset(token)
