"""Heads that attend to random keys."""

import keras
import tensorflow as tf

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.relative_positions import make_relative_positions
from rt_keras.ops.random import random_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class RandomHeads(HeadGroup):
    """Heads whose clusters have random members, a baseline for routing.

    See `rt_keras.ops.random_attention`. The members depend only on the length of the sequence. With
    `use_causal_mask`, an output does not depend on the content of later positions, but on their
    number.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of clusters per head.
        window_size: int, number of members of a cluster.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        seed: int, seed of the members. The head groups of a model need different seeds. Defaults to
            0.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Roy et al. 2021, section 5.1, the Random Transformer.

    >>> heads = RandomHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    abilities = Abilities(strictly_causal=True)

    def __init__(
        self, num_heads, num_clusters, window_size, max_relative_distance=None, seed=0, **kwargs
    ):
        super().__init__(num_heads, **kwargs)
        self.max_relative_distance = max_relative_distance
        self.positions = make_relative_positions(max_relative_distance, dtype=self.dtype_policy)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.window_size = positive_int("window_size", window_size)
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        if self.positions is not None:
            self.positions.build(query_shape)
        super().build(query_shape, value_shape, key_shape)

    def attend(self, inputs, return_logsumexp=False):
        return random_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            num_clusters=self.num_clusters,
            window_size=self.window_size,
            routing_seed=self.routing_seed,
            relative_embeddings=None if self.positions is None else self.positions.table(),
            **inputs.sequence_options(shared=True),
        )

    @property
    def routing_seed(self):
        """The seeds of all heads, int `[heads, 2]`."""
        return tf.stack([tf.fill([self.num_heads], self.seed), tf.range(self.num_heads)], axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "window_size": self.window_size,
            "max_relative_distance": self.max_relative_distance,
            "seed": self.seed,
        }
