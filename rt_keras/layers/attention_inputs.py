"""The inputs of heads and of sets of keys."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class AttentionInputs(NamedTuple):
    """The inputs of heads or of a set of keys: a whole sequence, or the next positions of one.

    Attributes:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`; None if queries are also the keys.
        value: `[batch, key_heads, length, value_depth]`.
        query_mask, key_mask: bool `[batch, length]`, False for padding; or None. Only for whole
            sequences.
        attention_mask: mask of query-key pairs, see `full_attention`; or None. Only for whole
            sequences.
        causal: bool, whether queries attend to no later key. True after a cache.
        dropout: float, fraction of the attention weights set to 0.
        seed: int `[2]`, required if `dropout` is above 0.
        documents: int `[batch, length]`, documents that do not see one another; or None. Only for
            whole sequences.
        gates: `[batch, heads, length, gates]`, see `HeadGroup.num_gates`; or None.
        position: int scalar or `[batch]`, number of previous positions.
        count: int scalar or `[batch]`, number of positions that are not padding; the padding
            follows them. None for all. Only with a cache.
        rotate: function of a tensor, its first position and a new position, which rotates queries
            or keys as if all were at that position; see `MultiHeadAttention.rotated_at`. None
            without a rotary embedding.
    """

    query: tf.Tensor
    key: tf.Tensor | None
    value: tf.Tensor
    query_mask: tf.Tensor | None = None
    key_mask: tf.Tensor | None = None
    attention_mask: tf.Tensor | None = None
    causal: bool = True
    dropout: float = 0.0
    seed: tf.Tensor | None = None
    documents: tf.Tensor | None = None
    gates: tf.Tensor | None = None
    position: tf.Tensor | int = 0
    count: tf.Tensor | None = None
    rotate: Callable | None = None

    @property
    def keys(self):
        """The keys, which are the queries if `key` is None."""
        return self.query if self.key is None else self.key

    @property
    def mask_of_keys(self):
        """The mask of `keys`."""
        return self.query_mask if self.key is None else self.key_mask

    def sequence_options(self, shared=False):
        """Returns the arguments of ops for whole sequences besides queries, keys and values.

        With `shared`, the op receives `key`, which is None for queries that are also keys; the keys
        then have no mask of their own.
        """
        options = {
            "causal": self.causal,
            "query_mask": self.query_mask,
            "key_mask": self.key_mask if shared else self.mask_of_keys,
            "dropout": self.dropout,
            "seed": self.seed,
        }
        return options if self.documents is None else {**options, "documents": self.documents}

    def chunk_options(self):
        """Returns the arguments of ops for a chunk besides queries, keys, values and the cache."""
        return {"count": self.count, "dropout": self.dropout, "seed": self.seed}
