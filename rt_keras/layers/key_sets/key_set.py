"""The base class of sets of keys: which keys a query sees."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from rt_keras.keys import keys_of
from rt_keras.ops.blocks import repeat_heads


class Chunk(NamedTuple):
    """What a set of keys is given: a whole sequence, or the next positions of one.

    Attributes:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`; None if queries are their own keys.
        value: `[batch, key_heads, length, value_depth]`.
        query_mask, key_mask: bool `[batch, length]`, False for padding; or None. Without a state
            only.
        attention_mask: mask of pairs, see `full_attention`; or None. Without a state only.
        causal: bool, whether no query sees a later key. True with a state.
        dropout: float, share of the attention weights set to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        position: int scalar, the number of positions before these; or int `[batch]`.
        count: int scalar or `[batch]`, how many of the positions count, the first ones; None for
            all. With a state only.
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
    position: tf.Tensor | int = 0
    count: tf.Tensor | None = None

    @property
    def keys(self):
        """The keys, also where queries are their own."""
        return self.query if self.key is None else self.key

    @property
    def mask_of_keys(self):
        """The mask of `keys`."""
        return self.query_mask if self.key is None else self.key_mask

    @property
    def of_sequence(self):
        """What ops for a whole sequence take besides queries, keys and values."""
        return {
            "causal": self.causal,
            "query_mask": self.query_mask,
            "key_mask": self.mask_of_keys,
            "dropout": self.dropout,
            "seed": self.seed,
        }

    def of_each_head(self):
        """The keys and the values of each head of queries."""
        return (repeat_heads(x, self.query.shape[1]) for x in (self.keys, self.value))


@dataclasses.dataclass(frozen=True, repr=False)
class KeySet:
    """Keys that a query sees, as one of the sets of `rt_keras.layers.Heads`.

    Attention to a set gives an output and the logsumexp of its logits, by which `Heads` joins it
    with others under one softmax. A set is a plain object: its fields are its options, each
    declared once, with what it means and allows. Its weights belong to the heads, which every
    method is given.

    A subclass has fields, says what it can do, and implements `attend`; and, if
    `cached_decoding`, `fill` and `step`, and `read` if `reads_chunks`.

    Raises:
        ValueError: if a field has a value that it does not allow.

    Source: ours.

    >>> from rt_keras.layers.key_sets import Window
    >>> window = Window(64, look_back=2)
    >>> window, window.get_config()["sliding_window"]
    (Window(block_size=64, look_back=2), None)
    """

    # The name of the set's state among those of a union.
    name = None

    # What a set can do; see `HeadGroup` and `CachedHeads`. A union can do what all of its sets can.
    strictly_causal = True
    needs_causal_mask = False
    takes_causal_mask = True
    takes_attention_mask = False
    cached_decoding = True
    cached_cross_attention = False
    cache_grows = False
    reads_chunks = False
    groups_queries = True
    normalizes = False
    can_be_dense = True
    runs_in_litert = False
    returns_attention_scores = True
    adds_to_values = False
    # Whether centroids that the set routes by stand for queries alone; None if it has none.
    clusters_queries_alone = None

    # Reach of the relative positions, a field of the sets that may have them.
    max_relative_distance = None
    # How logits become weights.
    attention_activation = "softmax"

    def __post_init__(self):
        for name, key in keys_of(type(self)).items():
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) and not key.allows(value):
                allowed = key.values.replace("null", "None")
                raise ValueError(f"{name} must be {allowed}. Received: {name}={value!r}")
        self.check()

    def __repr__(self):
        """The set with the options that are not their defaults."""
        values = {field: getattr(self, field.name) for field in options_of(type(self))}
        shown = [f"{field.name}={x!r}" for field, x in values.items() if x != field.default]
        return f"{type(self).__name__}({', '.join(shown)})"

    def check(self):
        """Raises a ValueError where values of fields do not go together."""

    @property
    def joins(self):
        """Whether attention to the set can be joined with others, by its logsumexp."""
        return self.attention_activation == "softmax"

    @property
    def takes_global_tokens(self):
        """Whether global tokens can join what a query sees."""
        return self.joins

    def beside(self, others):
        """This set as it is in a union.

        Args:
            others: list of the other sets of the union.

        Returns:
            A `KeySet`; this one, unless it must leave out what another one covers.

        Raises:
            ValueError: if it cannot be in a union with one of them.
        """
        return self

    def build_positions(self, heads, depth):
        """Adds the weights of relative positions to the heads; before those of `build`."""
        if self.max_relative_distance is not None:
            heads.add_relative_embeddings(self.max_relative_distance, depth)

    def relative_embeddings(self, heads):
        """The learnt vectors of relative positions, `[heads, 2 m + 1, depth]`, or None."""
        if self.max_relative_distance is None:
            return None
        return tf.convert_to_tensor(heads.relative_embeddings)

    def build(self, heads, depth, value_depth):
        """Adds the set's other weights to the heads."""

    def attend(self, heads, chunk, joins):
        """Attention of all positions of a sequence.

        Args:
            heads: the head group, which has the weights.
            chunk: `Chunk` of the whole sequence.
            joins: bool, whether to return the logsumexp of the logits too.

        Returns:
            `[batch, heads, length, value_depth]`, and with `joins` `[batch, heads, length]`.
        """
        raise NotImplementedError

    def after_attention(self, heads, chunk):
        """What a training step does besides, such as a loss of the set's own."""

    def fill(self, heads, chunk, max_length):
        """The state after the first `chunk.count` positions.

        Args:
            heads: the head group.
            chunk: `Chunk` of the first positions; those behind `count` may hold anything.
            max_length: int, how many positions there will be.

        Returns:
            A dictionary of tensors with the batch on axis 0.
        """
        raise NotImplementedError

    def read(self, heads, chunk, states, joins):
        """Attention of the next positions, given the state of those before them.

        Args:
            heads: the head group.
            chunk: `Chunk` of the next positions.
            states: dictionary of the states of all sets of the union, by `name`, before them.
            joins: bool, see `attend`.

        Returns:
            What `attend` returns, and the set's state after them.
        """
        raise NotImplementedError

    def step(self, heads, chunk, states, joins):
        """Attention of one position, given the state of those before it; see `read`."""
        raise NotImplementedError

    def cross_step(self, heads, chunk):
        """Attention of one position, `chunk.position`, to all keys of another sequence."""
        raise NotImplementedError

    def cross_length(self, length, keys):
        """To how many positions the queries of attention to another sequence are filled up."""
        return length

    def keys_read(self, causal):
        """How many keys of the set a query reads at most.

        Args:
            causal: bool, whether no query sees a later key.

        Returns:
            An int; None, as here, if that grows with the text, or depends on it.
        """
        return None

    def described(self):
        """What a message says of heads with this set, behind their kind."""
        return ""

    def get_config(self):
        return {field.name: getattr(self, field.name) for field in options_of(type(self))}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def in_union():
    """A field that is no option: what `KeySet.beside` finds among the other sets of a union."""
    return dataclasses.field(default=None, repr=False, compare=False, kw_only=True)


def options_of(key_set):
    """The fields of a class of sets that are its options, those that must be given first."""
    fields = [field for field in dataclasses.fields(key_set) if field.repr]
    return sorted(fields, key=lambda x: (x.default is not dataclasses.MISSING, x.kw_only))
