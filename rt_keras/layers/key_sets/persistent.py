"""The set of learned keys."""

import keras
import tensorflow as tf

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.key_sets.key_set import KeySet, only_output
from rt_keras.layers.relative_positions import noise
from rt_keras.ops.nearest.assign import normalize
from rt_keras.ops.persistent import persistent_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class Persistent(KeySet):
    """Learned keys and values of each head, which every query attends to.

    See `rt_keras.ops.persistent_attention`. The set requires another set in its union and has no
    state.

    Args:
        num_persistent_keys: int, number of learned keys and values per head.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range, or there is no other set.

    Source: Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory, section 4.2.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), Persistent(3)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    state_name = "persistent"
    # Global tokens would not attend to learned keys.
    abilities = Abilities(
        strictly_causal=True,
        cached=True,
        chunks=True,
        documents=True,
        grouped=True,
        joined=True,
        normalized=True,
        linear=False,
    )

    def __init__(self, num_persistent_keys, **kwargs):
        super().__init__(**kwargs)
        self.num_persistent_keys = positive_int("num_persistent_keys", num_persistent_keys)

    def join(self, others, share_qk):
        if not others:
            raise ValueError("Persistent keys need another set of keys. Received: none")
        # The queries are those of the other sets.
        self.normalizes = all(other.abilities.normalized for other in others)

    def build(self, query_shape, value_shape):
        _, heads, _, depth = query_shape
        count = self.num_persistent_keys
        self.persistent_keys = self.add_weight(
            (heads, count, depth), noise(depth**-0.5), name="persistent_keys"
        )
        self.persistent_values = self.add_weight(
            (heads, count, value_shape[-1]), noise(count**-0.5), name="persistent_values"
        )
        super().build(query_shape, value_shape)

    def keys_read(self, causal):
        return self.num_persistent_keys

    def attend(self, inputs, return_logsumexp):
        result = persistent_attention(
            normalize(inputs.query) if self.normalizes else inputs.query,
            tf.convert_to_tensor(self.persistent_keys),
            tf.convert_to_tensor(self.persistent_values),
            dropout=inputs.dropout,
            seed=inputs.seed,
        )
        return only_output(result, return_logsumexp)

    def prefill_state(self, inputs, max_length):
        return {}

    def attend_chunk(self, inputs, state, return_logsumexp):
        return self.attend(inputs, return_logsumexp), {}

    def get_config(self):
        return {**super().get_config(), "num_persistent_keys": self.num_persistent_keys}
