"""Strided heads as the paper authors' code has them."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Strided
from rt_keras.t2t.ops.strided import strided_attention, strided_step
from rt_keras.t2t.relative_tables import RelativeTables


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TStridedHeads(RelativeTables, Heads):
    """Strided heads as the paper authors' code has them; see `rt_keras.layers.StridedHeads`.

    Masks have no effect, the zeros that fill up the last stride are attended to, and there is no
    token bias.

    Args:
        num_heads: int, heads in the group.
        stride: int, positions from one key to the next.
        max_relative_distance: int, reach of the relative positions, in strides; None, the default,
            for none.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: base layer keyword arguments.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TStridedHeads(2, stride=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Strided,)
    fixed = {"num_persistent_keys": None}
    # As the numbers of this dialect's other heads, not joined with those of more keys.
    takes_global_tokens = False
    groups_queries = False

    def attend(self, **arguments):
        return strided_attention(stride=self.stride, **self.tables(), **arguments)

    def step(self, *, cache, **arguments):
        tables = self.tables()
        output, state = strided_step(
            cache=cache["strided"], stride=self.stride, **tables, **arguments
        )
        return output, {"strided": state}
