"""Base class of head groups: the heads of one kind in a `MultiHeadAttention`."""

import functools
import warnings

import keras
import tensorflow as tf

from rt_keras.layers.cached_heads import CachedHeads
from rt_keras.layers.each_document import attend_to_each
from rt_keras.layers.head_options import naming_the_kind, positive_int, positive_int_or_none
from rt_keras.layers.saved_arguments import arguments_of
from rt_keras.ops.blocks import of_one_length, repeat_heads
from rt_keras.ops.global_tokens import global_attention


class HeadGroup(CachedHeads, keras.layers.Layer):
    """Base class of a number of heads of one kind, with their state.

    Subclasses define which keys a query attends to. `MultiHeadAttention` projects its inputs once
    and gives each group its heads. A group is called with `(query, value, key, ...)`, each
    `[batch, heads, length, depth]`, and returns `[batch, heads, length, value_depth]`. Most kinds
    are unions of sets of keys; see `Heads`. Other subclasses implement `attend`, usually by naming
    an op, and optionally the hooks `before_attention` and `after_attention`.

    With grouped-query attention, there are fewer key/value heads, `num_key_value_heads`, and each
    serves num_heads / num_key_value_heads consecutive query heads. The shape of the values in
    `build` determines their number, key_heads below. Caches contain only these heads, unless
    queries are also keys.

    If `cached_decoding` is True, a group can also read a sequence in several calls. `make_cache`
    returns the cache after the first positions. `call_with_cache` adds one or more positions and
    returns the same outputs as a causal call on the whole sequence. If `cached_cross_attention` is
    True, `cross_attention_step` computes cross-attention for one position.

    Args:
        num_heads: int, number of heads in the group.
        max_relative_distance: int m or None, largest distance of the relative positions. Each head
            learns a vector for each distance -m ... m, which is added to the keys at that distance;
            larger distances count as m. None disables them. Source: Shaw et al. 2018,
            Self-Attention with Relative Position Representations, section 3.2. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        query: `[batch, heads, queries, depth]`.
        value: `[batch, key_heads, keys, value_depth]`.
        key: `[batch, key_heads, keys, depth]`; None if `share_qk`.
        query_mask: bool `[batch, queries]`, False for padding, or None.
        key_mask: bool `[batch, keys]`, False for padding, or None.
        attention_mask: bool `[batch, queries, keys]` or `[batch, heads, queries, keys]`, or None.
            Only if `takes_attention_mask`.
        use_causal_mask: bool, whether query i attends to key j only if j <= i.
        dropout: float, fraction of the attention weights set to 0 in training.
        seed: int `[2]`, required if `dropout` is above 0.
        training: bool, whether to apply dropout and collect statistics.
        global_tokens: `rt_keras.ops.global_tokens.GlobalTokens` or None. Only if
            `takes_global_tokens`.
        gates: `[batch, heads, queries, gates]`; see `num_gates`. Defaults to None, for kinds
            without gates.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, which do
            not see one another; or None.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Raises:
        ValueError: if `num_heads` or `max_relative_distance` is not a positive integer, the group
            does not support an `attention_mask`, `use_causal_mask` has an unsupported value,
            key_heads do not divide `num_heads`, or, with `share_qk`, there are fewer key/value
            heads or queries and values differ in number. If lengths are known only at run time, the
            last error is an `InvalidArgumentError`, which XLA does not check.

    >>> from rt_keras.ops import full_attention
    >>> class Full(HeadGroup):
    ...     attention_op = staticmethod(full_attention)
    >>> heads = Full(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    # The abilities of the group. `strictly_causal`: whether no output of a causal call depends on
    # a later position. If the whole sequence determines the members of clusters, a causal mask
    # does not ensure this. `needs_causal_mask` and `takes_causal_mask`: whether a call must be
    # causal, and whether it may be causal.
    strictly_causal = False
    needs_causal_mask = False
    takes_causal_mask = True

    # The op of heads without sets of keys, and the attributes that are its arguments.
    attention_op = None
    op_arguments = ()
    # The classes of sets of keys that provide the options of the group; see `Heads`.
    declared = ()
    # Whether queries are also keys: `key` is then None.
    share_qk = False
    # Whether `max_relative_distance` is an option of the group itself.
    takes_relative_positions = True
    # Whether `attend` supports grouped-query attention. If not, keys and values are repeated for
    # it.
    groups_queries = False
    # Whether the group supports any attention_mask of [batch, queries, keys].
    takes_attention_mask = False
    # Whether `attend` takes `documents`. Otherwise, it is called for one after the other.
    separates_documents = False
    # Whether attention, a step and a chunk can return the logsumexp of the logits, which merges
    # global tokens into the softmax; and whether these logits use layer-normalized queries and
    # keys.
    takes_global_tokens = False
    has_query_key_norm = False
    # Whether the group has centroids, which `CentroidEMA` updates.
    has_centroids = False
    # Whether outputs contain terms other than weighted sums of the values.
    adds_to_values = False
    # Whether the outputs for one-hot values are the attention weights.
    returns_attention_scores = True
    # Whether a layer's rotary embedding rotates the queries and keys of the group.
    takes_rotary_embedding = True
    # A function that rotates queries or keys at another position, set by a layer with a rotary
    # embedding: `MultiHeadAttention.rotated_at`.
    rotated_at = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = naming_the_kind(cls.__init__)

    def __init__(self, num_heads, max_relative_distance=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = positive_int("num_heads", num_heads)
        if self.takes_relative_positions:
            self.max_relative_distance = positive_int_or_none(
                "max_relative_distance", max_relative_distance
            )
        elif max_relative_distance is not None:
            raise ValueError(
                f"{type(self).__name__} do not support max_relative_distance. Received: "
                f"max_relative_distance={max_relative_distance!r}"
            )
        self.relative_embeddings = self.centroids = None
        self.num_key_value_heads = self.num_heads

    @property
    def state_dtype(self):
        """The dtype of centroids and statistics: float32 under every policy except float64."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    def num_gates(self, value_depth):
        """Returns the number of gates: numbers per head and position besides queries, keys, values.

        `MultiHeadAttention` computes them with a dense layer from the input of its queries, and
        passes them as `gates` to `call`, `make_cache` and `call_with_cache`.

        Args:
            value_depth: int, depth of a head's values.

        Returns:
            int, 0 for kinds without gates.
        """
        return 0

    def build(self, query_shape, value_shape=None, key_shape=None):
        if value_shape is not None:
            self.num_key_value_heads = self._checked_count(value_shape[1])
        self.value_depth = (value_shape or query_shape)[-1]
        self.key_depth = query_shape[-1]
        self.build_positions(query_shape[-1])
        self.built = True

    def check_built_for(self, query_shape, value_shape):
        """Raises a ValueError if the weights have other shapes than those of another layer."""
        built = self.key_depth, self.value_depth, self.num_key_value_heads
        needed = query_shape[-1], value_shape[-1], value_shape[1]
        if built != needed:
            raise ValueError(
                f"{self._described()} is part of another layer, with key_dim, value_dim and "
                f"num_key_value_heads {built}. Give each layer its own head groups. Received: "
                f"{needed}"
            )

    def _checked_count(self, num_key_value_heads):
        grouped = num_key_value_heads != self.num_heads
        if self.num_heads % num_key_value_heads or (self.share_qk and grouped):
            raise ValueError(
                "The number of key/value heads must divide the number of query heads, and equal it "
                f"with share_qk=True. Received: {num_key_value_heads} key/value heads for "
                f"{self.num_heads} heads of {type(self).__name__} with share_qk={self.share_qk}"
            )
        return num_key_value_heads

    def build_positions(self, depth):
        """Adds the weights of relative positions."""
        if self.takes_relative_positions and self.max_relative_distance is not None:
            self.add_relative_embeddings(self.max_relative_distance, depth)

    def add_relative_embeddings(self, max_relative_distance, depth):
        """Adds a learned vector for each distance, `relative_embeddings`.

        Raises:
            ValueError: if another set of keys of the group has added them already.
        """
        if self.relative_embeddings is not None:
            raise ValueError(
                "max_relative_distance must be None in all sets of keys but one. Received: "
                f"max_relative_distance={max_relative_distance} in two sets"
            )
        rows = 2 * max_relative_distance + 1
        self.add_head_weight("relative_embeddings", rows, depth, initializer=depth**-0.5)

    def add_head_weight(self, name, *shape, initializer="zeros", **options):
        """Adds a weight with an axis of heads and stores it in the attribute `name`.

        Args:
            name: string.
            *shape: ints; the weight is `[heads, *shape]`.
            initializer: Keras initializer, or a float, the standard deviation of normal noise.
                Defaults to "zeros".
            **options: keyword arguments of `add_weight`.
        """
        if isinstance(initializer, float):
            initializer = keras.initializers.RandomNormal(stddev=initializer)
        shape = (self.num_heads, *shape)
        weight = self.add_weight(name=name, shape=shape, initializer=initializer, **options)
        setattr(self, name, weight)

    def add_constant(self, name, *shape, initializer):
        """Adds a random weight that is never trained, with the dtype of the state."""
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
        gates=None,
        documents=None,
    ):
        self._check_call(attention_mask, use_causal_mask)
        if self.share_qk:
            message = f"{type(self).__name__} with share_qk=True need as many values as queries."
            query, value = of_one_length(query, value, message)
        if not self.groups_queries:
            key, value = (repeat_heads(x, self.num_heads) for x in (key, value))
        masks = self.before_attention(query, value, query_mask, key_mask)
        options = dict(masks)
        if attention_mask is not None:
            options["attention_mask"] = attention_mask
        if gates is not None:
            options["gates"] = gates
        attend = self.attend
        if global_tokens is not None:
            options["use_query_key_norm"] = self.has_query_key_norm
            attend = functools.partial(global_attention, self.attend, global_tokens)
        if documents is not None:
            masks = {**masks, "documents": documents}
            if self.separates_documents:
                options["documents"] = documents
            else:

                def attend(**arguments):
                    return attend_to_each(self, self.attend, documents, arguments)

        inputs, dropout = {"query": query, "key": key, "value": value}, dropout if training else 0.0
        output = attend(**inputs, causal=use_causal_mask, dropout=dropout, seed=seed, **options)
        if training:
            self.after_attention(**inputs, **masks)
        return output

    def _check_call(self, attention_mask, use_causal_mask):
        """Raises an error or a warning if the group does not support the arguments of a call."""
        name = self._described()
        if attention_mask is not None and not self.takes_attention_mask:
            raise ValueError(
                f"{name} do not support an attention_mask of [batch, queries, keys], since they "
                "never compute that matrix. Pass query_mask, value_mask or use_causal_mask, or an "
                "attention_mask of [batch, 1, keys]."
            )
        if self.needs_causal_mask and not use_causal_mask:
            raise ValueError(f"{name} need use_causal_mask=True: they only see earlier positions.")
        if use_causal_mask and not self.takes_causal_mask:
            raise ValueError(
                f"{name} do not support use_causal_mask=True: they attend in both directions. "
                "Use strictly causal heads, such as CausalClusteredHeads or LocalHeads."
            )
        if use_causal_mask and not self.strictly_causal:
            warnings.warn(
                f"With use_causal_mask=True, queries of {name} attend to no later key, but later "
                "positions influence which keys they attend to, so a language model sees part of "
                "its future. Heads with strictly_causal=True do not have this problem.",
                stacklevel=3,
            )

    def before_attention(self, query, value, query_mask, key_mask):
        """Hook that checks the inputs of a call.

        Returns:
            A dictionary of the "query_mask" and "key_mask" for attention.
        """
        return {"query_mask": query_mask, "key_mask": key_mask}

    def attend(self, **arguments):
        """Computes attention by calling the op of the heads; all arguments are keywords."""
        if self.attention_op is None:
            raise NotImplementedError
        own = {name: getattr(self, name) for name in self.op_arguments}
        for name, x in own.items():
            own[name] = tf.convert_to_tensor(x) if isinstance(x, keras.Variable) else x
        return self.attention_op(**own, **self.tables(), **arguments)

    def after_attention(self, *, query, key, value, query_mask, key_mask, documents=None):
        """Hook for the rest of a training step, such as collecting statistics."""

    def tables(self):
        """Returns the learned relative positions as keyword arguments of the ops."""
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

    def get_build_config(self):
        # A loaded group must not be built twice: its MultiHeadAttention builds it.
        return None


def copy_groups(head_groups, dtype):
    """Creates head groups with the same configuration but another dtype policy."""
    configs = [{**group.get_config(), "dtype": dtype} for group in head_groups]
    return [type(group).from_config(config) for group, config in zip(head_groups, configs)]
