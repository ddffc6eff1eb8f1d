"""The set of all keys."""

import keras

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.relative_positions import make_relative_positions
from rt_keras.ops.full import full_attention, full_cache, full_chunk, full_cross_step, full_step


@keras.saving.register_keras_serializable(package="rt_keras")
class Everything(KeySet):
    """All keys, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation.

    Args:
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.relative_positions.RelativePositions`. Defaults to "learned".
        position_biases: bool, whether sinusoidal positions have query biases. Defaults to True.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Vaswani et al. 2017, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> heads = Heads(2, [Everything()])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    state_name = "full"
    abilities = Abilities(
        strictly_causal=True,
        cached=True,
        bounded=False,
        chunks=True,
        across=True,
        pair_masks=True,
        documents=True,
        grouped=True,
        joined=True,
        global_tokens=True,
    )

    def __init__(
        self,
        max_relative_distance=None,
        relative_positions="learned",
        position_biases=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_relative_distance = max_relative_distance
        self.relative_positions = relative_positions
        self.position_biases = position_biases
        self.positions = make_relative_positions(
            max_relative_distance, relative_positions, position_biases
        )

    def attend(self, inputs, return_logsumexp):
        return full_attention(
            *self._vectors(inputs),
            attention_mask=inputs.attention_mask,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
            **inputs.sequence_options(),
        )

    def prefill_state(self, inputs, max_length):
        _, key, value = self._vectors(inputs)
        # A step masks later positions.
        return full_cache(key, value, max_length=max_length)

    def attend_chunk(self, inputs, state, return_logsumexp):
        return full_chunk(
            *self._vectors(inputs),
            state,
            inputs.position,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
            **inputs.chunk_options(),
        )

    def attend_step(self, inputs, state, return_logsumexp):
        return full_step(
            *self._vectors(inputs),
            state,
            inputs.position,
            count=inputs.count,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
        )

    def attend_across(self, inputs):
        return full_cross_step(
            *self._vectors(inputs),
            inputs.position,
            key_mask=inputs.key_mask,
            relative_embeddings=self.position_table(),
        )

    def _vectors(self, inputs):
        return *self.place(inputs.query, inputs.keys), inputs.value

    def get_config(self):
        return {
            **super().get_config(),
            "max_relative_distance": self.max_relative_distance,
            "relative_positions": self.relative_positions,
            "position_biases": self.position_biases,
        }
