"""Keys that are learnt."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.ops.persistent import persistent_attention
from rt_keras.ops.routing import normalize


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Persistent(KeySet):
    """Keys and values that each head learns, and that every query sees.

    See `rt_keras.ops.persistent_attention`. They need another set in their union, and no state.

    Args:
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.

    Raises:
        ValueError: if a value is out of range, or values do not go together.

    Source: Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory, section 4.2.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), Persistent(3)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    name = "persistent"
    reads_chunks = True
    normalizes = True
    can_be_dense = False
    adds_to_values = True
    # Global tokens would not see them.
    takes_global_tokens = False

    num_persistent_keys: int = key(
        dataclasses.MISSING, "keys that each head learns and every query sees", AT_LEAST_1
    )

    def beside(self, others):
        if not others:
            raise ValueError("Persistent keys need another set of keys beside them")
        return self

    def keys_read(self, causal):
        return self.num_persistent_keys

    def build(self, heads, depth, value_depth):
        count = self.num_persistent_keys
        heads.add_head_weight("persistent_keys", count, depth, initializer=depth**-0.5)
        heads.add_head_weight("persistent_values", count, value_depth, initializer=count**-0.5)

    def attend(self, heads, chunk, joins):
        return persistent_attention(
            normalize(chunk.query) if heads.normalizes else chunk.query,
            tf.convert_to_tensor(heads.persistent_keys),
            tf.convert_to_tensor(heads.persistent_values),
            dropout=chunk.dropout,
            seed=chunk.seed,
        )

    def fill(self, heads, chunk, max_length):
        return {}

    def read(self, heads, chunk, states, joins):
        return self.attend(heads, chunk, joins), {}

    step = read
