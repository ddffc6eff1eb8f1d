"""The set of learned keys."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.ops.nearest.assign import normalize
from rt_keras.ops.persistent import persistent_attention


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Persistent(KeySet):
    """Learned keys and values of each head, which every query attends to.

    See `rt_keras.ops.persistent_attention`. The set requires another set in its union and has no
    state.

    Args:
        num_persistent_keys: int, number of learned keys and values per head.

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

    name = "persistent"
    reads_chunks = True
    separates_documents = True
    has_query_key_norm = True
    adds_to_values = True
    # Global tokens would not attend to them.
    takes_global_tokens = False

    num_persistent_keys: int = key(
        dataclasses.MISSING, "learned keys and values per head", AT_LEAST_1
    )

    def beside(self, others):
        if not others:
            raise ValueError("Persistent keys need another set of keys. Received: none")
        return self

    def keys_read(self, causal):
        return self.num_persistent_keys

    def build(self, heads, depth, value_depth):
        count = self.num_persistent_keys
        heads.add_head_weight("persistent_keys", count, depth, initializer=depth**-0.5)
        heads.add_head_weight("persistent_values", count, value_depth, initializer=count**-0.5)

    def attend(self, heads, chunk, joins):
        return persistent_attention(
            normalize(chunk.query) if heads.has_query_key_norm else chunk.query,
            tf.convert_to_tensor(heads.persistent_keys),
            tf.convert_to_tensor(heads.persistent_values),
            dropout=chunk.dropout,
            seed=chunk.seed,
        )

    def prefill_state(self, heads, chunk, max_length):
        return {}

    def read_chunk(self, heads, chunk, states, joins):
        return self.attend(heads, chunk, joins), {}

    decode_step = read_chunk
