"""The set of every n-th key."""

import dataclasses

import keras

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets.by_ops import ByOps
from rt_keras.layers.key_sets.key_set import in_union
from rt_keras.layers.key_sets.window import Window, window_among
from rt_keras.ops.strided import strided_attention, strided_cache, strided_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Strided(ByOps):
    """The keys at multiples of a stride from a query; with a `Window`, only those outside it.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride), and the cache
    grows with the sequence.

    Args:
        stride: int, distance between keys, in positions.
        max_relative_distance: int or None, largest distance of the relative positions, in strides.
            None disables them. Defaults to None.
        window: the `Window` whose keys are left out; set by the union.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Child et al. 2019, section 4.3.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), Strided(4)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    name = "strided"
    cache_grows = True
    attention_op, step_op = map(staticmethod, (strided_attention, strided_step))

    stride: int = key(dataclasses.MISSING, "distance between keys, in positions", AT_LEAST_1)
    max_relative_distance: int | None = key(
        None, "largest distance of the relative positions in strides, null for none", AT_LEAST_1
    )
    # The window whose keys are left out.
    window: Window | None = in_union()

    @property
    def separates_documents(self):
        """Returns whether no window is left out, which depends on positions in the row."""
        return self.window is None

    def beside(self, others):
        return dataclasses.replace(self, window=window_among(others))

    def covers(self, query_positions, key_positions):
        """Returns whether keys are in the set, bool, for positions that broadcast to each other."""
        return (query_positions - key_positions) % self.stride == 0

    def prefill_state(self, heads, chunk, max_length):
        # A step masks later positions.
        return strided_cache(chunk.keys, chunk.value, stride=self.stride, max_length=max_length)

    def op_options(self, heads, joins):
        return {
            "stride": self.stride,
            "relative_embeddings": self.relative_embeddings(heads),
            "outside": None if self.window is None else self.window.covers,
            "return_logsumexp": joins,
        }
