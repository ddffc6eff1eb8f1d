"""The set of the first keys of a sequence, the attention sinks."""

import dataclasses

import keras

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets.at_distance import AtDistance
from rt_keras.layers.key_sets.everything import Everything
from rt_keras.layers.key_sets.key_set import in_union
from rt_keras.layers.key_sets.window import Window, window_among
from rt_keras.ops.first_tokens import first_tokens_attention, first_tokens_cache, first_tokens_chunk


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class FirstTokens(AtDistance):
    """The attention sinks: the keys of the first tokens of a sequence.

    See `rt_keras.ops.first_tokens_attention`. The set leaves out keys that a `Window` or `Strided`
    in the same union has, and requires another set in its union. Its cache does not grow with the
    sequence.

    Args:
        num_first_tokens: int, number of tokens at the start of a sequence that every query attends
            to.
        rotary_distance: int or None, distance between a query and the keys of the set for rotary
            embeddings; see `rt_keras.layers.key_sets.at_distance`. None for their own distances.
            Defaults to None.
        covered: sets whose keys are left out; set by the union.

    Raises:
        ValueError: if `num_first_tokens` is out of range, there is no other set, or another set
            contains all keys.

    Source: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), FirstTokens(2)])
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    name = "first"
    reads_chunks = True
    always_with_logsumexp = True
    attention_op, chunk_op, step_op = map(
        staticmethod, (first_tokens_attention, first_tokens_chunk, first_tokens_chunk)
    )

    num_first_tokens: int = key(
        dataclasses.MISSING, "first tokens that every query attends to", AT_LEAST_1
    )
    # The sets whose keys are left out.
    covered: tuple | None = in_union()

    def beside(self, others):
        if not others or any(isinstance(x, Everything) for x in others):
            raise ValueError(
                "FirstTokens needs another set of keys, which must not be Everything. Received: "
                f"{', '.join(map(repr, others)) or 'none'}"
            )
        window_among(others)
        covered = tuple(x for x in others if hasattr(x, "covers"))
        return dataclasses.replace(self, covered=covered)

    @property
    def furthest_left_out(self):
        return max((x.furthest for x in self.covered or () if isinstance(x, Window)), default=None)

    def keys_read(self, causal):
        return self.num_first_tokens

    def attend(self, heads, chunk, joins):
        return super().attend(heads, chunk, joins, num_first_tokens=self.num_first_tokens)

    def prefill_state(self, heads, chunk, max_length):
        # A step masks later positions.
        key = self.at_distance(heads, chunk).keys
        return first_tokens_cache(key, chunk.value, num_first_tokens=self.num_first_tokens)

    def op_options(self, heads, joins):
        return {"outside": tuple(x.covers for x in self.covered or ())}
