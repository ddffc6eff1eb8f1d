"""Heads of the Reformer."""

import keras

from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.lsh import lsh_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class LSHHeads(HeadGroup):
    """Heads whose queries see those that share a bucket with them, in any of several hashes.

    See `rt_keras.ops.lsh_attention`. Queries are their own keys. The rotations that hash are random
    and are not trained; unlike in the Reformer's code they stay the same from step to step, so that
    a model computes the same in training as later. Which positions share a chunk depends on the
    whole sequence, and so does an output, even if attention is causal. `HashedHeads` are what the
    paper authors of routing attention compared themselves with.

    Args:
        num_heads: int, heads in the group.
        num_buckets: int, an even number, the buckets of each hash.
        chunk_size: int, positions in a chunk. Where buckets are even, length / num_buckets is the
            least that holds one; the paper has twice that.
        num_rounds: int, number of hashes. Defaults to 1.
        seed: int, seed of the rotations, or None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        rotations: `[heads, num_rounds, depth, num_buckets / 2]`, not trainable.

    Raises:
        ValueError: if a size is not a positive integer, `num_buckets` is odd, or there is a
            `max_relative_distance`.

    Source: Kitaev et al. 2020, Reformer: The Efficient Transformer, section 2.

    >>> heads = LSHHeads(2, num_buckets=4, chunk_size=4, num_rounds=2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    share_qk = True

    takes_relative_positions = False
    attention_op = staticmethod(lsh_attention)
    op_arguments = ("rotations", "chunk_size")

    def __init__(self, num_heads, num_buckets, chunk_size, num_rounds=1, seed=None, **kwargs):
        super().__init__(num_heads, **kwargs)
        if positive_int("num_buckets", num_buckets) % 2:
            raise ValueError(f"num_buckets must be even. Received: num_buckets={num_buckets}")
        self.num_buckets = num_buckets
        self.chunk_size = positive_int("chunk_size", chunk_size)
        self.num_rounds = positive_int("num_rounds", num_rounds)
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)
        shape = self.num_rounds, query_shape[-1], self.num_buckets // 2
        self.add_constant("rotations", *shape, initializer=initializer)
