"""Base class of head groups: the heads of one kind in a `MultiHeadAttention`."""

import warnings

import keras
import tensorflow as tf

from rt_keras import ops
from rt_keras.layers.abilities import Abilities
from rt_keras.layers.attention_inputs import AttentionInputs
from rt_keras.layers.each_document import attend_to_each
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.blocks import move_axis, of_one_length, repeat_heads, size


class HeadGroup(keras.layers.Layer):
    """Base class of a number of heads of one kind, with their state.

    Subclasses define which keys a query attends to. `MultiHeadAttention` projects its inputs once
    and gives each group its heads. A group is called with `(query, value, key, ...)`, each
    `[batch, heads, length, depth]`, and returns `[batch, heads, length, value_depth]`. Most kinds
    are unions of sets of keys; see `Heads`. Other subclasses define their `abilities` and implement
    `attend`, usually with one op.

    With grouped-query attention, there are fewer key/value heads, `num_key_value_heads`, and each
    serves num_heads / num_key_value_heads consecutive query heads. The shape of the values in
    `build` determines their number, key_heads below. Caches contain only these heads, unless
    queries are also keys.

    If its abilities are `cached`, a group can also read a sequence in several calls. `make_cache`
    returns the cache after the first positions. `call_with_cache` adds one or more positions and
    returns the same outputs as a causal call on the whole sequence. Such a group implements
    `prefill_cache`, `attend_step` and, if its abilities are `chunks`, `attend_chunk`. If they are
    `across`, `cross_attention_step` computes cross-attention for one position.

    Args:
        num_heads: int, number of heads in the group.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        query: `[batch, heads, queries, depth]`.
        value: `[batch, key_heads, keys, value_depth]`.
        key: `[batch, key_heads, keys, depth]`; None if `share_qk`.
        query_mask: bool `[batch, queries]`, False for padding, or None.
        key_mask: bool `[batch, keys]`, False for padding, or None.
        attention_mask: bool `[batch, queries, keys]` or `[batch, heads, queries, keys]`, or None.
            Only if the abilities are `pair_masks`.
        use_causal_mask: bool, whether query i attends to key j only if j <= i.
        dropout: float, fraction of the attention weights set to 0 in training.
        seed: int `[2]`, required if `dropout` is above 0.
        training: bool, whether to apply dropout and collect statistics.
        global_tokens: `rt_keras.ops.global_tokens.GlobalTokens` or None. Only if the abilities are
            `global_tokens`.
        gates: `[batch, heads, queries, gates]`; see `num_gates`. Defaults to None, for kinds
            without gates.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, which do
            not see one another; or None.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Raises:
        ValueError: if `num_heads` is not a positive integer, the group does not support an
            `attention_mask`, `use_causal_mask` has an unsupported value, key_heads do not divide
            `num_heads`, or, with `share_qk`, there are fewer key/value heads or queries and values
            differ in number. If lengths are known only at run time, the last error is an
            `InvalidArgumentError`, which XLA does not check.

    Source: ours.

    >>> from rt_keras.ops import full_attention
    >>> class Full(HeadGroup):
    ...     def attend(self, inputs, return_logsumexp=False):
    ...         vectors = inputs.query, inputs.keys, inputs.value
    ...         return full_attention(*vectors, **inputs.sequence_options())
    >>> heads = Full(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    abilities = Abilities()
    # Whether queries are also keys: `key` is then None.
    share_qk = False
    # The `Centroids` of the heads, or None.
    centroids = None
    # A function that rotates queries or keys at another position, set by a layer with a rotary
    # embedding: `MultiHeadAttention.rotated_at`.
    rotated_at = None

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = positive_int("num_heads", num_heads)
        self.num_key_value_heads = self.num_heads

    @property
    def kind(self):
        """The name of the kind of heads, in messages and tables."""
        return type(self).__name__

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
        value_shape = value_shape or query_shape
        self.num_key_value_heads = self._checked_count(value_shape[1])
        self.key_depth, self.value_depth = query_shape[-1], value_shape[-1]
        self.built = True

    def add_constant(self, name, *shape, initializer):
        """Returns a new weight `[heads, *shape]` that is never trained, in at least float32."""
        return self.add_weight(
            name=name,
            shape=(self.num_heads, *shape),
            initializer=initializer,
            dtype="float64" if self.compute_dtype == "float64" else "float32",
            trainable=False,
            autocast=False,
        )

    def check_built_for(self, query_shape, value_shape):
        """Raises a ValueError if the weights have other shapes than those of another layer."""
        built = self.key_depth, self.value_depth, self.num_key_value_heads
        needed = query_shape[-1], value_shape[-1], value_shape[1]
        if built != needed:
            raise ValueError(
                f"{self.kind} is part of another layer, with key_dim, value_dim and "
                f"num_key_value_heads {built}. Give each layer its own head groups. Received: "
                f"{needed}"
            )

    def _checked_count(self, num_key_value_heads):
        grouped = num_key_value_heads != self.num_heads
        if self.num_heads % num_key_value_heads or (self.share_qk and grouped):
            raise ValueError(
                "The number of key/value heads must divide the number of query heads, and equal it "
                f"with share_qk=True. Received: {num_key_value_heads} key/value heads for "
                f"{self.num_heads} heads of {self.kind} with share_qk={self.share_qk}"
            )
        return num_key_value_heads

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
            message = f"{self.kind} with share_qk=True need as many values as queries."
            query, value = of_one_length(query, value, message)
            if key_mask is not None:
                # Queries that are also keys have one mask.
                both = key_mask if query_mask is None else tf.logical_and(query_mask, key_mask)
                query_mask, key_mask = both, None
        if not self.abilities.grouped:
            key, value = (repeat_heads(x, self.num_heads) for x in (key, value))
        inputs = AttentionInputs(
            query,
            None if self.share_qk else key,
            value,
            query_mask,
            key_mask,
            attention_mask,
            causal=use_causal_mask,
            dropout=dropout if training else 0.0,
            seed=seed,
            documents=documents,
            gates=gates,
            rotate=self.rotated_at,
        )
        if documents is not None and not self.abilities.documents:
            output = attend_to_each(self, self.attend, inputs)
        elif global_tokens is not None:
            output = self._attend_globally(inputs, global_tokens)
        else:
            output = self.attend(inputs)
        if training:
            self.collect_statistics(inputs)
        return output

    def _attend_globally(self, inputs, global_tokens):
        """Computes attention of all positions to their keys and to global tokens."""

        def attend(return_logsumexp, **changed):
            return self.attend(inputs._replace(**changed), return_logsumexp)

        return ops.global_attention(
            attend,
            global_tokens,
            query=inputs.query,
            key=inputs.key,
            value=inputs.value,
            use_query_key_norm=self.abilities.normalized,
            causal=inputs.causal,
            query_mask=inputs.query_mask,
            key_mask=inputs.key_mask,
            dropout=inputs.dropout,
            seed=inputs.seed,
        )

    def _check_call(self, attention_mask, use_causal_mask):
        """Raises an error or a warning if the group does not support the arguments of a call."""
        if attention_mask is not None and not self.abilities.pair_masks:
            raise ValueError(
                f"{self.kind} do not support an attention_mask of [batch, queries, keys], since "
                "they never compute that matrix. Pass query_mask, value_mask or use_causal_mask, "
                "or an attention_mask of [batch, 1, keys]."
            )
        if not (use_causal_mask or self.abilities.bidirectional):
            raise ValueError(
                f"{self.kind} need use_causal_mask=True: they only see earlier positions."
            )
        if use_causal_mask and not self.abilities.causal:
            raise ValueError(
                f"{self.kind} do not support use_causal_mask=True: they attend in both directions. "
                "Use strictly causal heads, such as CausalClusteredHeads or LocalHeads."
            )
        if use_causal_mask and not self.abilities.strictly_causal:
            warnings.warn(
                f"With use_causal_mask=True, queries of {self.kind} attend to no later key, but "
                "later positions influence which keys they attend to, so a language model sees "
                "part of its future. Heads with strictly_causal abilities do not have this "
                "problem.",
                stacklevel=3,
            )

    def attend(self, inputs, return_logsumexp=False):
        """Computes attention of all positions of a sequence.

        Args:
            inputs: `AttentionInputs`.
            return_logsumexp: bool, whether to also return the logsumexp of the logits, if the
                abilities are `joined`. Defaults to False.

        Returns:
            `[batch, heads, length, value_depth]`, and with `return_logsumexp` also
            `[batch, heads, length]`.
        """
        raise NotImplementedError

    def collect_statistics(self, inputs):
        """Collects the statistics of a training step; called after attention to `inputs`."""
        if self.centroids is not None:
            self.centroids.collect_statistics(*self.clustered_vectors(inputs).values())

    def clustered_vectors(self, inputs):
        """Returns the vectors that belong to clusters, for heads with centroids; see `KeySet`."""
        queries = {"queries": (inputs.query, inputs.query_mask)}
        return queries if self.share_qk else {**queries, "keys": (inputs.key, inputs.key_mask)}

    def new_cache(self, batch, max_length, key_depth, value_depth):
        """Returns an empty cache; see `make_cache`.

        Args:
            batch: int or scalar tensor, number of rows.
            max_length: int, final number of positions.
            key_depth: int, depth of a head's keys.
            value_depth: int, depth of a head's values.

        Returns:
            A dictionary of tensors.
        """

        def nothing(heads, depth):
            return tf.zeros([batch, heads, 1, depth], self.compute_dtype) if depth else None

        query = nothing(self.num_heads, key_depth)
        key = None if self.share_qk else nothing(self.num_key_value_heads, key_depth)
        value = nothing(self.num_key_value_heads, value_depth)
        gates = nothing(self.num_heads, self.num_gates(value_depth))
        return self.make_cache(query, value, key, 0, max_length, gates)

    def prefill(self, query, value, key, count, max_length, gates=None):
        """Computes the causal outputs of the first positions, and their cache.

        Args:
            query, value, key, count, max_length, gates: see `make_cache`.

        Returns:
            `[batch, heads, length, value_depth]`, and the cache.
        """
        output = self(query, value, key, use_causal_mask=True, training=False, gates=gates)
        return output, self.make_cache(query, value, key, count, max_length, gates)

    def make_cache(self, query, value, key, count, max_length, gates=None):
        """Returns the cache after the first positions.

        Args:
            query: `[batch, heads, length, depth]`.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            count: int scalar, number of positions in the cache. The other positions may have any
                content.
            max_length: int, final number of positions.
            gates: `[batch, heads, length, gates]`; see `HeadGroup.num_gates`. Defaults to None, for
                kinds without gates.

        Returns:
            A dictionary of tensors with the batch on axis 0. Their sizes depend on the group, and
            on `max_length` only if the cache is not bounded.

        Raises:
            ValueError: if the abilities are not `cached`.
        """
        self._check_cached()
        key = None if self.share_qk else key
        inputs = AttentionInputs(
            query, key, value, gates=gates, count=count, rotate=self.rotated_at
        )
        return self.prefill_cache(inputs, max_length)

    def call_with_cache(
        self,
        query,
        value,
        key,
        cache,
        position,
        count=None,
        dropout=0.0,
        seed=None,
        training=False,
        gates=None,
    ):
        """Computes the causal outputs of the next positions and adds these to the cache.

        Args:
            query: `[batch, heads, length, depth]`, one position or a chunk of a sequence.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            cache: the cache of `make_cache`, `new_cache` or the previous call.
            position: int scalar, number of previous positions. Also int `[batch]`, one number per
                row, for one position, or for several if the abilities are `chunks`.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them and does not change the cache. For one position, or for several if the
                abilities are `chunks`. None for all. Defaults to None.
            dropout, seed: see the call arguments of `HeadGroup`.
            training: bool, whether to apply dropout and collect statistics, if the abilities are
                `stateful`. Statistics are those of the chunk alone. Defaults to False.
            gates: see `make_cache`. Defaults to None.

        Returns:
            `[batch, heads, length, value_depth]`, and the cache.

        Raises:
            ValueError: if the abilities are not `cached`.
        """
        self._check_cached()
        inputs = AttentionInputs(
            tf.convert_to_tensor(query),
            None if self.share_qk or key is None else tf.convert_to_tensor(key),
            tf.convert_to_tensor(value),
            dropout=dropout if training else 0.0,
            seed=seed,
            gates=None if gates is None else tf.convert_to_tensor(gates),
            position=position,
            count=count,
            rotate=self.rotated_at,
        )
        # A step costs far less than a chunk of one position, which is computed in blocks.
        if query.shape[2] == 1 and not training:
            if tf.convert_to_tensor(position).shape.rank:
                # Loops need one position per row.
                row_positions = tf.broadcast_to(position, [size(value, 0)])
                inputs = inputs._replace(position=row_positions)
            return self.attend_step(inputs, cache)
        if not self.abilities.chunks:
            return self._attend_step_by_step(inputs, cache, training)
        output, cache = self.attend_chunk(inputs, cache)
        if training:
            mask = None if count is None else tf.range(size(query, 2)) < count[:, None]
            self.collect_statistics(inputs._replace(query_mask=mask, key_mask=mask))
        return output, cache

    def prefill_cache(self, inputs, max_length):
        """Returns the group's cache after the first `inputs.count` positions."""
        raise NotImplementedError

    def attend_step(self, inputs, cache, return_logsumexp=False):
        """Computes the output and the cache of one position; see `attend`.

        Rows may be at different positions. Rows with a count of 0 keep their cache.
        """
        raise NotImplementedError

    def attend_chunk(self, inputs, cache, return_logsumexp=False):
        """Computes the outputs and the cache of several positions in one pass; see `attend`."""
        raise NotImplementedError

    def _attend_step_by_step(self, inputs, cache, training):
        """Computes the outputs and the cache of several positions, one step after the other."""
        by_row = tf.convert_to_tensor(inputs.position).shape.rank > 0
        if by_row or inputs.count is not None or training:
            raise ValueError(
                f"{self.kind} read a chunk position by position and do not support different "
                "positions per row, padding, or training with a cache"
            )
        # [length, batch, heads, depth]
        query, key, value, gates = (
            None if x is None else move_axis(x, 2, 0)
            for x in (inputs.query, inputs.key, inputs.value, inputs.gates)
        )
        length = size(inputs.value, 2)

        def step(index, cache, outputs):
            def take(x):
                return None if x is None else x[index][:, :, None]  # [batch, heads, 1, depth]

            one = inputs._replace(
                query=take(query),
                key=take(key),
                value=take(value),
                gates=take(gates),
                position=inputs.position + index,
            )
            output, cache = self.attend_step(one, cache)
            return index + 1, cache, outputs.write(index, output[:, :, 0])

        loop = 0, cache, tf.TensorArray(inputs.value.dtype, length)
        _, cache, outputs = tf.while_loop(lambda index, *_: index < length, step, loop)
        return move_axis(outputs.stack(), 0, 2), cache

    def cross_attention_step(self, query, value, key, position, key_mask=None):
        """Computes the output of one position that attends to another sequence.

        Args:
            query: `[batch, heads, queries, depth]`, any number of queries at the same position.
            value: `[batch, key_heads, keys, value_depth]`.
            key: `[batch, key_heads, keys, depth]`.
            position: int scalar.
            key_mask: bool `[batch, keys]`, False for padding, or None. Defaults to None.

        Returns:
            `[batch, heads, queries, value_depth]`.

        Raises:
            ValueError: if the abilities are not `across`.
        """
        if not self.abilities.across:
            raise ValueError(f"{self.kind} do not support cross-attention by position")
        inputs = AttentionInputs(query, key, value, key_mask=key_mask, position=position)
        return self.attend_across(inputs)

    def attend_across(self, inputs):
        """Computes the cross-attention of one position, `inputs.position`."""
        raise NotImplementedError

    def cross_attention_prefill(self, query, value, key, key_mask=None):
        """Computes the outputs of the first positions, which attend to another sequence."""
        return self(query, value, key, key_mask=key_mask, training=False)

    def _check_cached(self):
        if not self.abilities.cached:
            raise ValueError(
                f"{self.kind} cannot be decoded with a cache: each output depends on the whole "
                "sequence. Call the layer on all positions so far instead."
            )

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}

    def get_build_config(self):
        # A loaded group must not be built twice: its MultiHeadAttention builds it.
        return None


def copy_groups(head_groups, dtype):
    """Creates head groups with the same configuration but another dtype policy."""
    configs = [{**group.get_config(), "dtype": dtype} for group in head_groups]
    return [type(group).from_config(config) for group, config in zip(head_groups, configs)]
