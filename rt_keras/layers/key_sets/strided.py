"""The set of every n-th key."""

import keras

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.key_sets.window import window_among
from rt_keras.layers.relative_positions import make_relative_positions
from rt_keras.ops.strided import strided_attention, strided_cache, strided_step


@keras.saving.register_keras_serializable(package="rt_keras")
class Strided(KeySet):
    """The keys at multiples of a stride from a query; with a `Window`, only those outside it.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride), and the cache
    grows with the sequence.

    Args:
        stride: int, distance between keys, in positions.
        max_relative_distance: int or None, largest distance of the relative positions, in strides.
            None disables them. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

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

    state_name = "strided"
    # Whether keys are in the window of the union, which are left out: its `covers`.
    outside = None

    def __init__(self, stride, max_relative_distance=None, **kwargs):
        super().__init__(**kwargs)
        self.stride = positive_int("stride", stride)
        self.max_relative_distance = max_relative_distance
        self.positions = make_relative_positions(max_relative_distance)

    @property
    def abilities(self):
        return Abilities(
            strictly_causal=True,
            cached=True,
            bounded=False,
            # Which keys a window has depends on positions in the row.
            documents=self.outside is None,
            grouped=True,
            joined=True,
            global_tokens=True,
        )

    def join(self, others, share_qk):
        window = window_among(others)
        if window is not None:
            self.outside, self.furthest_left_out = window.covers, window.furthest

    def covers(self, query_positions, key_positions):
        """Returns whether keys are in the set, bool, for positions that broadcast to each other."""
        return (query_positions - key_positions) % self.stride == 0

    def attend(self, inputs, return_logsumexp):
        return strided_attention(
            inputs.query,
            inputs.keys,
            inputs.value,
            **self._options(return_logsumexp),
            **inputs.sequence_options(),
        )

    def prefill_state(self, inputs, max_length):
        # A step masks later positions.
        return strided_cache(inputs.keys, inputs.value, stride=self.stride, max_length=max_length)

    def attend_step(self, inputs, state, return_logsumexp):
        return strided_step(
            inputs.query,
            inputs.keys,
            inputs.value,
            state,
            inputs.position,
            count=inputs.count,
            **self._options(return_logsumexp),
        )

    def _options(self, return_logsumexp):
        return {
            "stride": self.stride,
            "relative_embeddings": self.position_table(),
            "outside": self.outside,
            "return_logsumexp": return_logsumexp,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "stride": self.stride,
            "max_relative_distance": self.max_relative_distance,
        }
