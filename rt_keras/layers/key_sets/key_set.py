"""The base class of sets of keys, which define the keys that a query attends to."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from rt_keras.keys import keys_of


class Chunk(NamedTuple):
    """The inputs of a set of keys: a whole sequence, or the next positions of one.

    Attributes:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`; None if queries are also the keys.
        value: `[batch, key_heads, length, value_depth]`.
        query_mask, key_mask: bool `[batch, length]`, False for padding; or None. Only without a
            state.
        attention_mask: mask of query-key pairs, see `full_attention`; or None. Only without a
            state.
        causal: bool, whether queries attend to no later key. Must be True with a state.
        dropout: float, fraction of the attention weights set to 0.
        seed: int `[2]`, required if `dropout` is above 0.
        documents: int `[batch, length]`, documents that do not see one another; or None. Only if
            the set `separates_documents`, without a state.
        position: int scalar or `[batch]`, number of previous positions.
        count: int scalar or `[batch]`, number of positions that are not padding; the padding
            follows them. None for all. Only with a state.
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
    position: tf.Tensor | int = 0
    count: tf.Tensor | None = None

    @property
    def keys(self):
        """The keys, which are the queries if `key` is None."""
        return self.query if self.key is None else self.key

    @property
    def mask_of_keys(self):
        """The mask of `keys`."""
        return self.query_mask if self.key is None else self.key_mask

    @property
    def of_sequence(self):
        """Arguments of ops for whole sequences, besides queries, keys and values."""
        return {
            "causal": self.causal,
            "query_mask": self.query_mask,
            "key_mask": self.mask_of_keys,
            "dropout": self.dropout,
            "seed": self.seed,
            **({} if self.documents is None else {"documents": self.documents}),
        }


@dataclasses.dataclass(frozen=True, repr=False)
class KeySet:
    """Base class of sets of keys, the parts of a `rt_keras.layers.Heads` union.

    Attention to a set returns an output and the logsumexp of its logits, which `Heads` uses to
    merge several sets under one softmax. A set is a frozen dataclass. Its fields are its options,
    each declared with its meaning and its allowed values. Its weights belong to the heads, which
    all methods receive.

    A subclass defines fields, sets the class attributes that describe its abilities, and implements
    `attend`. If `cached_decoding` is True, it also implements `prefill_state` and `decode_step`; if
    `reads_chunks` is True, it implements `read_chunk`.

    Raises:
        ValueError: if the value of a field is not allowed.

    Source: ours.

    >>> from rt_keras.layers.key_sets import Window
    >>> window = Window(64, look_back=2)
    >>> window, window.get_config()["sliding_window"]
    (Window(block_size=64, look_back=2), None)
    """

    # The name of the set's state in the cache of a union.
    name = None

    # The abilities of a set; see `HeadGroup` and `CachedHeads`. A union has those that all of its
    # sets have.
    strictly_causal = True
    needs_causal_mask = False
    takes_causal_mask = True
    takes_attention_mask = False
    separates_documents = False
    cached_decoding = True
    cached_cross_attention = False
    cache_grows = False
    reads_chunks = False
    groups_queries = True
    has_query_key_norm = False
    adds_to_values = False
    # Whether attention to the set can be merged with other sets by its logsumexp.
    joins = True
    # Whether the set's centroids represent only queries. None if it has no centroids.
    clusters_queries_alone = None

    # Fields that may be a tuple of one value for each dimension.
    per_dimension = ()
    # Largest distance of the relative positions, a field of the sets that support them.
    max_relative_distance = None
    # The window whose keys are left out, a field of the sets that leave out keys.
    window = None

    def __post_init__(self):
        for name, key in keys_of(type(self)).items():
            value = getattr(self, name)
            is_tuple = name in self.per_dimension and isinstance(value, (tuple, list))
            if not is_tuple and not key.allows(value):
                allowed = key.values.replace("null", "None")
                raise ValueError(f"{name} must be {allowed}. Received: {name}={value!r}")
        self.check()

    def __repr__(self):
        """Returns the set with its non-default options."""
        values = {field: getattr(self, field.name) for field in options_of(type(self))}
        shown = [f"{field.name}={x!r}" for field, x in values.items() if x != field.default]
        return f"{type(self).__name__}({', '.join(shown)})"

    def check(self):
        """Raises a ValueError if fields have incompatible values."""

    @property
    def takes_global_tokens(self):
        """Returns whether queries can attend to global tokens in addition to the set."""
        return self.joins

    def beside(self, others):
        """Returns the set as part of a union.

        Args:
            others: list of the other sets of the union.

        Returns:
            A `KeySet`. It differs from this one if it must leave out the keys of another set.

        Raises:
            ValueError: if the set cannot be combined with one of the others.
        """
        return self

    @property
    def furthest_left_out(self):
        """Largest distance of the keys that the set leaves to the window of its union.

        None if it leaves out none. No query of a shorter sequence then sees a key of the set.
        """
        return None if self.window is None else self.window.furthest

    def is_out_of_reach(self, length):
        """Returns whether no query of a sequence of a known length sees a key of the set."""
        furthest = self.furthest_left_out
        return isinstance(length, int) and furthest is not None and length <= furthest + 1

    def build_positions(self, heads, depth):
        """Adds the weights of relative positions to the heads. Called before `build`."""
        if self.max_relative_distance is not None:
            heads.add_relative_embeddings(self.max_relative_distance, depth)

    def relative_embeddings(self, heads):
        """Returns the learned vectors of relative positions, `[heads, 2 m + 1, depth]`, or None."""
        if self.max_relative_distance is None:
            return None
        return tf.convert_to_tensor(heads.relative_embeddings)

    def build(self, heads, depth, value_depth):
        """Adds the other weights of the set to the heads."""

    def attend(self, heads, chunk, joins):
        """Computes attention of all positions of a sequence.

        Args:
            heads: the head group, which owns the weights.
            chunk: `Chunk` of the whole sequence.
            joins: bool, whether to also return the logsumexp of the logits.

        Returns:
            `[batch, heads, length, value_depth]`, and with `joins` also `[batch, heads, length]`.
        """
        raise NotImplementedError

    def prefill_state(self, heads, chunk, max_length):
        """Returns the state after the first `chunk.count` positions.

        Args:
            heads: the head group.
            chunk: `Chunk` of the first positions. Positions after `count` may have any content.
            max_length: int, final number of positions.

        Returns:
            A dictionary of tensors with the batch on axis 0.
        """
        raise NotImplementedError

    def read_chunk(self, heads, chunk, states, joins):
        """Computes attention of the next positions from the state of the previous ones.

        Args:
            heads: the head group.
            chunk: `Chunk` of the next positions.
            states: dictionary from the `name` of each set of the union to its previous state.
            joins: bool, see `attend`.

        Returns:
            The result of `attend`, and the new state of the set.
        """
        raise NotImplementedError

    def decode_step(self, heads, chunk, states, joins):
        """Computes attention of one position from the previous state; see `read_chunk`."""
        raise NotImplementedError

    def cross_step(self, heads, chunk):
        """Computes attention of one position, `chunk.position`, to all keys of another sequence."""
        raise NotImplementedError

    def cross_length(self, length, keys):
        """Returns the length to which queries of cross-attention are padded."""
        return length

    def keys_read(self, causal):
        """Returns the maximum number of keys of the set that a query attends to.

        Args:
            causal: bool, whether queries attend to no later key.

        Returns:
            An int, or None (the default) if the number depends on the text or its length.
        """
        return None

    def described(self):
        """Returns the text that follows the class name of the heads in messages."""
        return ""

    def get_config(self):
        return {field.name: getattr(self, field.name) for field in options_of(type(self))}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def in_union():
    """Creates a field that is not an option: `KeySet.beside` sets it from the other sets."""
    return dataclasses.field(default=None, repr=False, compare=False, kw_only=True)


def options_of(key_set):
    """Returns the fields of a class of sets that are options, required ones first."""
    fields = [field for field in dataclasses.fields(key_set) if field.repr]
    return sorted(fields, key=lambda x: (x.default is not dataclasses.MISSING, x.kw_only))
