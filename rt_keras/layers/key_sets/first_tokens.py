"""The set of the first keys of a sequence, the attention sinks."""

import keras

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.key_sets.at_distance import AtDistance
from rt_keras.layers.key_sets.everything import Everything
from rt_keras.layers.key_sets.key_set import only_output
from rt_keras.layers.key_sets.window import window_among
from rt_keras.ops.first_tokens import first_tokens_attention, first_tokens_cache, first_tokens_chunk


@keras.saving.register_keras_serializable(package="rt_keras")
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
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

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

    state_name = "first"
    abilities = Abilities(
        strictly_causal=True,
        cached=True,
        chunks=True,
        grouped=True,
        joined=True,
        global_tokens=True,
    )
    # Functions that tell whether other sets of the union have a key, which is then left out.
    outside = ()

    def __init__(self, num_first_tokens, *, rotary_distance=None, **kwargs):
        super().__init__(rotary_distance, **kwargs)
        self.num_first_tokens = positive_int("num_first_tokens", num_first_tokens)

    def join(self, others, share_qk):
        if not others or any(isinstance(x, Everything) for x in others):
            raise ValueError(
                "FirstTokens needs another set of keys, which must not be Everything. Received: "
                f"{', '.join(map(repr, others)) or 'none'}"
            )
        window = window_among(others)
        self.furthest_left_out = None if window is None else window.furthest
        self.outside = tuple(x.covers for x in others if hasattr(x, "covers"))

    def keys_read(self, causal):
        return self.num_first_tokens

    def attend(self, inputs, return_logsumexp):
        query, key = self.at_distance(inputs)
        result = first_tokens_attention(
            query,
            key,
            inputs.value,
            num_first_tokens=self.num_first_tokens,
            outside=self.outside,
            **inputs.sequence_options(),
        )
        return only_output(result, return_logsumexp)

    def prefill_state(self, inputs, max_length):
        _, key = self.at_distance(inputs)
        # A step masks later positions.
        return first_tokens_cache(key, inputs.value, num_first_tokens=self.num_first_tokens)

    def attend_chunk(self, inputs, state, return_logsumexp):
        query, key = self.at_distance(inputs)
        result, state = first_tokens_chunk(
            query,
            key,
            inputs.value,
            state,
            inputs.position,
            outside=self.outside,
            **inputs.chunk_options(),
        )
        return only_output(result, return_logsumexp), state

    def get_config(self):
        return {**super().get_config(), "num_first_tokens": self.num_first_tokens}
