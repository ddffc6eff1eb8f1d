"""The base class of head groups: heads of one kind inside `MultiHeadAttention`."""

import functools
import warnings

import keras
import tensorflow as tf

from rt_keras.layers.cached_heads import CachedHeads
from rt_keras.layers.head_options import naming_the_kind, positive_int, positive_int_or_none
from rt_keras.layers.saved_arguments import arguments_of
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.full import full_attention
from rt_keras.ops.global_tokens import global_attention


class HeadGroup(CachedHeads, keras.layers.Layer):
    """A number of heads of one kind, with their state; subclasses say which keys a query sees.

    `MultiHeadAttention` projects its inputs once and hands each group its heads. A group is called
    with `(query, value, key, ...)`, each `[batch, heads, length, depth]`, and returns
    `[batch, heads, length, value_depth]`. Most kinds are unions of sets of keys, see `Heads`.
    Another subclass implements `attend`, one call of an op, and may implement the hooks
    `before_attention` and `after_attention`.

    Queries may be grouped: there are fewer heads of keys and values, `key_heads`, and each serves
    num_heads / key_heads consecutive heads of queries. The shape of the values that the group is
    built for says how many. Caches keep these heads alone, unless the keys are queries.

    If `cached_decoding` is True, a group also reads a sequence bit by bit: `make_cache` keeps what
    later positions need of the first ones, and `call_with_cache` adds one position or more and
    returns the outputs that a causal call on the whole sequence has there. If
    `cached_cross_attention` is True, `cross_attention_step` does so for attention to another
    sequence.

    Args:
        num_heads: int, heads in the group.
        max_relative_distance: int m, for relative positions: each head learns a vector for each
            distance -m ... m, added to the keys that far away (further ones count as m). None, the
            default, for no relative positions. Source: Shaw et al. 2018, Self-Attention with
            Relative Position Representations, section 3.2.
        dense_below: int, the length of sequences below which the group is full attention, of
            queries and keys as they are: short sequences cost little, and lose nothing then. What
            counts is the length that a sequence will have: with a cache its `max_length`, else
            that of the queries, compared at run time if it is not known before. A group with
            `dense_below` carries no state, whose sequences have no known end. None, the default,
            for never.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        query: `[batch, heads, queries, depth]`.
        value: `[batch, key_heads, keys, value_depth]`.
        key: `[batch, key_heads, keys, depth]`; None if `share_qk`.
        query_mask: bool `[batch, queries]`, False for padding, or None.
        key_mask: bool `[batch, keys]`, False for padding, or None.
        attention_mask: bool `[batch, queries, keys]` or `[batch, heads, queries, keys]`, or None;
            only if `takes_attention_mask`.
        use_causal_mask: bool, whether query i sees key j only if j <= i.
        dropout: float, share of the attention weights set to 0 in training.
        seed: int `[2]`, needed if `dropout` is above 0.
        training: bool, whether dropout is on and statistics are collected.
        global_tokens: `rt_keras.ops.global_tokens.GlobalTokens`, only if `takes_global_tokens`; or
            None.
        total_length: int, the length of the sequence whose first positions these are, for
            `dense_below`; None, the default, for that of the queries.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Raises:
        ValueError: if `num_heads` or `max_relative_distance` is not a positive integer, the group
            cannot have `dense_below`, an `attention_mask` is given that the group cannot take, a
            call is causal or is not where it must be the other, `key_heads` do not divide
            `num_heads`, or queries that are their own keys are grouped or not as many as values.
            Where lengths are known at run time alone, the last is an `InvalidArgumentError`, and is
            not checked by XLA.
    """

    # What the group is and can do. `strictly_causal`: whether with use_causal_mask no output
    # depends on a later position; where members are chosen by the whole sequence, a causal mask
    # alone does not see to that. `needs_causal_mask` and `takes_causal_mask`: whether a call must
    # be causal, and whether it may.
    strictly_causal = False
    needs_causal_mask = False
    takes_causal_mask = True

    # The op of heads that are no sets of keys, and the attributes that it takes by their names.
    attention_op = None
    op_arguments = ()
    # The classes of sets of keys whose options are the group's; see `Heads`.
    declared = ()
    # Whether queries are their own keys: `key` is then None.
    share_qk = False
    # Whether `max_relative_distance` is an option of the group itself.
    takes_relative_positions = True
    # Whether `attend` takes grouped queries as they are; if not, it gets their keys repeated.
    groups_queries = False
    # Whether the group takes any attention_mask of [batch, queries, keys].
    takes_attention_mask = False
    # Whether `attend`, and a step or chunk if there is any, can return the logsumexp of the logits,
    # by which global tokens and persistent keys join, and whether these logits are those of
    # layer-normalised queries and keys.
    takes_global_tokens = False
    normalizes = False
    # Whether full attention is another thing, and one that `dense_below` can ask for.
    can_be_dense = True
    # How logits become weights.
    attention_activation = "softmax"
    # Whether the group has centroids, which `CentroidEMA` moves.
    has_centroids = False
    # Whether outputs have a part besides the sums of the values.
    adds_to_values = False
    # Whether attention weights can be read off the outputs for one-hot values.
    returns_attention_scores = True
    # Whether LiteRT's kernels, which broadcast few dimensions, can run what the group computes.
    runs_in_litert = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = naming_the_kind(cls.__init__)

    def __init__(self, num_heads, max_relative_distance=None, dense_below=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = positive_int("num_heads", num_heads)
        if self.takes_relative_positions:
            self.max_relative_distance = positive_int_or_none(
                "max_relative_distance", max_relative_distance
            )
        elif max_relative_distance is not None:
            raise ValueError(
                f"{type(self).__name__} take no max_relative_distance. Received: "
                f"max_relative_distance={max_relative_distance!r}"
            )
        self.dense_below = positive_int_or_none("dense_below", dense_below)
        self.relative_embeddings = self.centroids = None
        self.key_heads = self.num_heads

    @property
    def state_dtype(self):
        """The dtype of centroids and statistics: float32 under every policy but float64."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    def build(self, query_shape, value_shape=None, key_shape=None):
        if self.dense_below is not None and not self.can_be_dense:
            raise ValueError(
                f"dense_below must be None for {self._described()}. Received: "
                f"dense_below={self.dense_below}"
            )
        if value_shape is not None:
            self.key_heads = self._checked_key_heads(value_shape[1])
        self.value_depth = (value_shape or query_shape)[-1]
        self.build_positions(query_shape[-1])
        self.built = True

    def _checked_key_heads(self, key_heads):
        if self.num_heads % key_heads or (self.share_qk and key_heads != self.num_heads):
            raise ValueError(
                "The heads of values must divide those of queries, and be as many with "
                f"share_qk=True. Received: {key_heads} heads of values for {self.num_heads} heads "
                f"of {type(self).__name__} with share_qk={self.share_qk}"
            )
        return key_heads

    def build_positions(self, depth):
        """Adds what the group learns about relative positions."""
        if self.takes_relative_positions and self.max_relative_distance is not None:
            self.add_relative_embeddings(self.max_relative_distance, depth)

    def add_relative_embeddings(self, max_relative_distance, depth):
        """Adds a vector for each distance, `relative_embeddings`, which a group has once.

        Raises:
            ValueError: if it has them already, of another of its sets of keys.
        """
        if self.relative_embeddings is not None:
            raise ValueError(
                "max_relative_distance must be None in all but one of the sets of keys. Received: "
                f"max_relative_distance={max_relative_distance} in two of them"
            )
        rows = 2 * max_relative_distance + 1
        self.add_head_weight("relative_embeddings", rows, depth, initializer=depth**-0.5)

    def add_head_weight(self, name, *shape, initializer="zeros", **options):
        """Adds a weight of each head, which becomes the attribute of its name.

        Args:
            name: string.
            *shape: ints; the weight is `[heads, *shape]`.
            initializer: initializer of Keras, or a float, the standard deviation of normal noise.
                Defaults to zeros.
            **options: keyword arguments of `add_weight`.
        """
        if isinstance(initializer, float):
            initializer = keras.initializers.RandomNormal(stddev=initializer)
        shape = (self.num_heads, *shape)
        weight = self.add_weight(name=name, shape=shape, initializer=initializer, **options)
        setattr(self, name, weight)

    def add_constant(self, name, *shape, initializer):
        """Adds a weight that is drawn once and never trained, in the dtype of the state."""
        fixed = {"dtype": self.state_dtype, "trainable": False, "autocast": False}
        self.add_head_weight(name, *shape, initializer=initializer, **fixed)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        key_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        dropout=0.0,
        seed=None,
        training=None,
        global_tokens=None,
        total_length=None,
    ):
        self._check_call(attention_mask, use_causal_mask)
        if self.share_qk:
            query, value = self._of_one_length(query, value)
        if not self.groups_queries:
            key, value = (repeat_heads(x, self.num_heads) for x in (key, value))
        masks = self.before_attention(query, value, query_mask, key_mask)
        options = dict(masks)
        if attention_mask is not None:
            options["attention_mask"] = attention_mask
        attend = self._attention(
            size(query, 2) if total_length is None else total_length, global_tokens
        )
        inputs, dropout = {"query": query, "key": key, "value": value}, dropout if training else 0.0
        output = attend(**inputs, causal=use_causal_mask, dropout=dropout, seed=seed, **options)
        if training:
            self.after_attention(**inputs, **masks)
        return output

    def _check_call(self, attention_mask, use_causal_mask):
        """Raises a ValueError, or warns, where a group cannot do what a call asks for."""
        name = self._described()
        if attention_mask is not None and not self.takes_attention_mask:
            raise ValueError(
                f"{name} cannot take an attention_mask of [batch, queries, keys]: it never forms "
                "that matrix. Give query_mask, value_mask or use_causal_mask, or an "
                "attention_mask of [batch, 1, keys]."
            )
        if self.needs_causal_mask and not use_causal_mask:
            raise ValueError(f"{name} need use_causal_mask=True: they see earlier positions alone.")
        if use_causal_mask and not self.takes_causal_mask:
            raise ValueError(
                f"{name} cannot attend with use_causal_mask=True: they are for both directions. "
                "Take heads that are strictly causal, such as CausalClusteredHeads or LocalHeads."
            )
        if use_causal_mask and not self.strictly_causal:
            warnings.warn(
                f"With use_causal_mask=True no query of {name} sees a later key, but which keys it "
                "sees depends on later positions: a language model sees something of its future. "
                "Heads with strictly_causal=True do not.",
                stacklevel=3,
            )

    def _of_one_length(self, query, value):
        """Queries and values; raises an error if there are not as many of one as of the other."""
        lengths = [size(query, 2), size(value, 2)]
        message = (
            f"{type(self).__name__} with share_qk=True need as many values as queries, which are "
            "their own keys."
        )
        if any(tf.is_tensor(length) for length in lengths):
            # Before what fails without it, and with a message that nobody understands.
            with tf.control_dependencies([tf.debugging.assert_equal(*lengths, message)]):
                return tf.identity(query), tf.identity(value)
        if lengths[0] != lengths[1]:
            raise ValueError(
                f"{message} Received: query of length {lengths[0]}, value of length {lengths[1]}."
            )
        return query, value

    def before_attention(self, query, value, query_mask, key_mask):
        """Hook: checks a call's inputs.

        Returns:
            The dictionary of "query_mask" and "key_mask" that attention gets.
        """
        return {"query_mask": query_mask, "key_mask": key_mask}

    def attend(self, **arguments):
        """The attention of these heads: one call of an op, which takes all arguments by name."""
        if self.attention_op is None:
            raise NotImplementedError
        own = {name: getattr(self, name) for name in self.op_arguments}
        for name, x in own.items():
            own[name] = tf.convert_to_tensor(x) if isinstance(x, keras.Variable) else x
        return self.attention_op(**own, **self.tables(), **arguments)

    def _attention(self, length, global_tokens):
        """The function of attention for sequences of a length: the group's own, or full."""
        own = self._with_global_tokens(self.attend, global_tokens, self.normalizes)
        if self.dense_below is None:
            return own
        full = self._with_global_tokens(self._attend_fully, global_tokens, False)
        is_short = length < self.dense_below
        if not tf.is_tensor(is_short):
            return full if is_short else own
        return lambda **arguments: tf.cond(
            is_short, lambda: full(**arguments), lambda: own(**arguments)
        )

    def _with_global_tokens(self, attend, global_tokens, normalized):
        """A function of attention that global tokens join, if there are any."""
        if global_tokens is None:
            return attend
        return functools.partial(global_attention, attend, global_tokens, normalized=normalized)

    def _attend_fully(self, *, key, query_mask=None, key_mask=None, **options):
        """Full attention, to queries and keys as they are; see `attend`."""
        if key is None and key_mask is None:
            # One list of vectors has one mask.
            key_mask = query_mask
        masks = {"query_mask": query_mask, "key_mask": key_mask}
        return full_attention(key=key, **masks, **self.tables(), **options)

    def after_attention(self, *, query, key, value, query_mask, key_mask):
        """Hook: what a training step does besides, such as collecting statistics."""

    def tables(self):
        """The learnt relative positions, by their names in the ops."""
        if self.relative_embeddings is None:
            return {}
        return {"relative_embeddings": keras.ops.convert_to_tensor(self.relative_embeddings)}

    def _described(self):
        return type(self).__name__

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self):
        names = [name for name in arguments_of(type(self)) if hasattr(self, name)]
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config):
        known = {*arguments_of(cls), "name", "dtype", "trainable"}
        # Files of earlier versions hold options that the kind has not, as None for none.
        config = {k: v for k, v in config.items() if k in known or v is not None}
        if "token_bias" in config and "token_bias" not in known:
            raise ValueError(
                f"token_bias must be None for {cls.__name__}: only heads of rt_keras.t2t have "
                f"one. Received: token_bias={config['token_bias']!r}"
            )
        return super().from_config(config)

    def get_build_config(self):
        # None, so that a loaded group is not built twice: its MultiHeadAttention builds it.
        return None


def copy_groups(head_groups, dtype):
    """New head groups with the same configuration but another dtype policy."""
    configs = [{**group.get_config(), "dtype": dtype} for group in head_groups]
    return [type(group).from_config(config) for group, config in zip(head_groups, configs)]
