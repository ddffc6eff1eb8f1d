"""Heads with the attention of the Reformer."""

import keras
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.lsh import lsh_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class LSHHeads(HeadGroup):
    """Heads whose queries attend to those in the same bucket of at least one of several hashes.

    See `rt_keras.ops.lsh_attention`. Queries are also keys. The random rotations of the hashes are
    not trained. Unlike in the Reformer's code, they do not change from step to step, so a model
    computes the same function in training and inference. The assignment of positions to blocks
    depends on the whole sequence, and so do the outputs even if attention is causal.

    Args:
        num_heads: int, number of heads in the group.
        num_buckets: int, number of buckets per hash, an even number.
        block_size: int, number of positions in a block. If buckets have equal sizes, a block must
            have at least length / num_buckets positions to hold one bucket; the paper uses twice as
            many.
        num_rounds: int, number of hashes. Defaults to 1.
        seed: int or None, seed of the rotations. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        rotations: `[heads, num_rounds, depth, num_buckets / 2]`, not trainable.

    Raises:
        ValueError: if a size is not a positive integer or `num_buckets` is odd.

    Source: Kitaev et al. 2020, Reformer: The Efficient Transformer, section 2.

    >>> heads = LSHHeads(2, num_buckets=4, block_size=4, num_rounds=2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    share_qk = True

    def __init__(self, num_heads, num_buckets, block_size, num_rounds=1, seed=None, **kwargs):
        super().__init__(num_heads, **kwargs)
        if positive_int("num_buckets", num_buckets) % 2:
            raise ValueError(f"num_buckets must be even. Received: num_buckets={num_buckets}")
        self.num_buckets = num_buckets
        self.block_size = positive_int("block_size", block_size)
        self.num_rounds = positive_int("num_rounds", num_rounds)
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)
        shape = self.num_rounds, query_shape[-1], self.num_buckets // 2
        self.rotations = self.add_constant("rotations", *shape, initializer=initializer)

    def attend(self, inputs, return_logsumexp=False):
        return lsh_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            rotations=tf.convert_to_tensor(self.rotations),
            block_size=self.block_size,
            **inputs.sequence_options(shared=True),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "block_size": self.block_size,
            "num_rounds": self.num_rounds,
            "seed": self.seed,
        }
