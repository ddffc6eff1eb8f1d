"""Strided heads as in the authors' code."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Strided
from rt_keras.t2t.ops.strided import strided_attention, strided_step
from rt_keras.t2t.relative_tables import RelativeTables


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TStridedHeads(RelativeTables, Heads):
    """Strided heads as in the authors' code; see `rt_keras.layers.StridedHeads`.

    Masks have no effect, queries attend to the zeros that pad the last stride, and a token bias is
    not supported.

    Args:
        num_heads: int, number of heads in the group.
        stride: int, distance between consecutive keys.
        max_relative_distance: int or None, largest relative distance, in strides. None disables
            relative positions. Defaults to None.
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
    # Like this dialect's other heads, these cannot be joined with more keys.
    takes_global_tokens = False
    groups_queries = False

    def attend(self, **arguments):
        return strided_attention(stride=self.stride, **self.tables(), **arguments)

    def decode_step(self, *, cache, **arguments):
        tables = self.tables()
        output, state = strided_step(
            cache=cache["strided"], stride=self.stride, **tables, **arguments
        )
        return output, {"strided": state}
