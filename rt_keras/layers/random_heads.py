"""Heads that see keys drawn at random."""

import keras
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.random import random_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class RandomHeads(HeadGroup):
    """Heads whose clusters draw their members at random: the baseline of routing.

    See `rt_keras.ops.random_attention`. The members are the same at every call on sequences of one
    length, and with `use_causal_mask` an output depends on no later position, but on how many
    there are.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, clusters of each head.
        window_size: int, members of a cluster.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        seed: int, seed of the draw. The groups of a model need different ones. Defaults to 0.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Roy et al. 2021, section 5.1, the Random Transformer.

    >>> heads = RandomHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    strictly_causal = True
    attention_op = staticmethod(random_attention)
    op_arguments = ("num_clusters", "window_size", "routing_seed")

    def __init__(
        self, num_heads, num_clusters, window_size, max_relative_distance=None, seed=0, **kwargs
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.window_size = positive_int("window_size", window_size)
        self.seed = seed

    @property
    def routing_seed(self):
        """The seeds of each head, int `[heads, 2]`."""
        return tf.stack([tf.fill([self.num_heads], self.seed), tf.range(self.num_heads)], axis=-1)
