"""Multi-head attention with several kinds of heads."""

import contextvars
import inspect

import keras
import tensorflow as tf

from rt_keras.keys import wrong_value
from rt_keras.layers.attention_masks import check_attention_mask, split_attention_mask
from rt_keras.layers.attention_scores import attention_scores, check_scores
from rt_keras.layers.cached_attention import CachedAttention
from rt_keras.layers.dropout import draw_seed
from rt_keras.layers.each_document import check_documents
from rt_keras.layers.global_tokens import check_global_mask, check_global_tokens
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.layers.projections import Projections
from rt_keras.layers.saved_arguments import saved_arguments, store_arguments, with_layers
from rt_keras.ops.documents import number_documents, positions_in_documents
from rt_keras.ops.global_tokens import find_global_tokens

# Functions that receive each layer called in this thread, with the arguments of each group's call;
# see `observe_attention`.
OBSERVERS = contextvars.ContextVar("observers", default=())


@keras.saving.register_keras_serializable(package="rt_keras")
class MultiHeadAttention(Projections, CachedAttention, keras.layers.Layer):
    """Multi-head attention with several kinds of heads.

    It is called like `keras.layers.MultiHeadAttention` and replaces it in existing models:

    ```
    head_h = attend_h(query W_q, key W_k, value W_v)
    output = concat(head_1, ..., head_H) W_o
    ```

    where attend_h is the attention of the head group that contains head h. Groups with `share_qk`
    have no W_k. With `use_head_dense`, each head_h is multiplied by a W_d `[depth, depth]`, shared
    by all heads, before concatenation. For a query without any visible key, such as padding, the
    heads return zeros. Batches and sequences may be empty.

    With `conv_kernel_size`, short convolutions add a weighted sum of the last queries to each
    query, separately in each dimension and before rotary embeddings:

    ```
    query_i = (query W_q)_i + sum_(s < conv_kernel_size) kernel_s ⊙ (query W_q)_(i - s)
    ```

    Keys and values are convolved in the same way, with separate kernels. Kernels start at 0, so
    that the initial model is the one without convolutions. Positions before the first one and
    padding count as 0. Convolutions do not include later positions, even if attention is not
    causal. In cross-attention, they stay within each sequence, and no cache is supported.

    Args:
        head_groups: list of head groups, such as `LocalHeads`, `RoutingHeads` and `FullHeads`, in
            the order of the heads.
        key_dim: int, depth of each head's queries and keys. Defaults to the features of `query`
            divided by the number of heads, which must divide them.
        value_dim: int, depth of each head's values. Defaults to `key_dim`.
        dropout: float, fraction of the attention weights set to 0 in training. Defaults to 0.
        use_bias: bool, whether the dense layers use biases. Defaults to True.
        use_head_dense: bool, whether to use W_d, as in the code of the paper's authors. Defaults to
            False.
        output_shape: int, last dimension of the output. Defaults to that of `query`.
        kernel_initializer: initializer of the kernels. Defaults to "glorot_uniform".
        bias_initializer: initializer of the biases. Defaults to "zeros".
        kernel_regularizer: regularizer of the kernels. Defaults to None.
        bias_regularizer: regularizer of the biases. Defaults to None.
        activity_regularizer: regularizer of the outputs of the dense layers: queries, keys, values
            and output. Defaults to None.
        kernel_constraint: constraint of the kernels. It applies to `[features, heads, depth]` for
            queries, keys and values and to `[heads, depth, features]` for the output, as in
            `keras.layers.MultiHeadAttention`. Defaults to None.
        bias_constraint: constraint of the biases, which applies to `[heads, depth]`. Defaults to
            None.
        seed: int, seed of the dropout. Defaults to None.
        num_key_value_heads: int or None, number of key/value heads, for grouped-query attention:
            each serves num_heads / num_key_value_heads consecutive query heads of the same group.
            None for the number of heads. Defaults to None.
        rotary_embedding: layer that rotates queries and keys by their positions, such as
            `keras_hub.layers.RotaryEmbedding()`, or None. It is called on
            `[batch, length, heads, depth]` with the argument `positions`. Positions include padding
            and start at 0, in cross-attention for each sequence. `GatedDeltaHeads` remain
            unrotated. Defaults to None.
        num_global_tokens: int or None, maximum number of global tokens per sequence. A global
            token, such as the first token of a classifier, attends to all positions and all
            positions attend to it. Each costs O(n). `global_mask` selects them in each call. None
            disables them. Defaults to None.
        conv_kernel_size: int or None, number of positions, up to its own, that are convolved into a
            query, a key and a value; at least 2. None disables the convolutions. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        query: `[batch, queries, features]`.
        value: `[batch, keys, features]`.
        key: `[batch, keys, features]`. Defaults to `value`.
        query_mask: bool `[batch, queries]`, False for padding. Keras sets this mask and the next
            two automatically if tensors have masks.
        value_mask: bool `[batch, keys]`, False for padding.
        key_mask: bool `[batch, keys]`, False for padding.
        attention_mask: bool, broadcast to `[batch, heads, queries, keys]`; `[batch, queries, keys]`
            and `[queries, keys]` apply to all heads. Only `FullHeads` support masks of query-key
            pairs. Every group supports a mask that all queries share, such as `[batch, 1, keys]`.
        return_attention_scores: bool, whether to also return the attention weights,
            `[batch, heads, queries, keys]`, at a cost of O(n²) for all kinds of heads.
            `GatedDeltaHeads`, which have no weights of single keys, do not support this.
        use_causal_mask: bool, whether queries attend to no later position.
        training: bool, whether to apply dropout and collect statistics of routing heads.
        global_mask: bool `[batch, length]`, True for global tokens, in self-attention with
            `num_global_tokens`; None for no global tokens. Other queries attend to them in addition
            to the keys of their heads, under one softmax, with each key counted once, but without
            relative positions. In causal attention, global tokens also attend to no later position.
            If a sequence has more than `num_global_tokens`, compiled functions use the first ones;
            otherwise an error is raised.
        segment_ids: int `[batch, length]` or None, in self-attention. Documents that share a row
            are runs of equal ids, and attend to themselves alone: outputs equal those of a row for
            each document. `RandomHeads` draw keys by the length of the row. Heads that
            choose keys from whole sequences, and some sets of keys, attend to one document after
            the other, which costs as much as a row for each; see
            `HeadGroup.separates_documents`. They cannot be combined with `global_mask`.
        positions: int `[batch, length]` or None, the positions that `rotary_embedding` uses.
            Defaults to those in the row, or in its document with `segment_ids`.

    Returns:
        `[batch, queries, output_shape]`, and the attention weights if requested.

    Raises:
        ValueError: if `head_groups` is not a list of head groups, an argument is out of range, the
            number of heads does not divide the features, a group does not support a mask, global
            tokens or attention weights, there are more than `num_global_tokens` global tokens, or
            heads that share keys belong to different groups or use queries as keys, or if
            `segment_ids` are given in cross-attention or with global tokens.

    Source: Roy et al. 2021, sections 3.2 and 4.1; Vaswani et al. 2017, section 3.2.2;
    grouped-query attention: Ainslie et al. 2023, GQA; rotary embeddings: Su et al. 2021, RoFormer;
    global tokens: Beltagy et al. 2020, section 3.1; convolutions: So et al. 2021, Primer, and, with
    the residual, Allen-Zhu 2025, Physics of Language Models, Part 4.1, Canon layers.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> layer = MultiHeadAttention([LocalHeads(2, 16), RoutingHeads(2, 4, 16)], key_dim=8)
    >>> x = keras.random.normal([1, 50, 32])
    >>> layer(x, x, use_causal_mask=True).shape
    TensorShape([1, 50, 32])

    With rotary embeddings and grouped-query attention, as in Llama:

    >>> import keras_hub
    >>> layer = MultiHeadAttention(
    ...     [LocalHeads(2, 16), RoutingHeads(2, 4, 16)],
    ...     use_bias=False,
    ...     num_key_value_heads=2,
    ...     rotary_embedding=keras_hub.layers.RotaryEmbedding(),
    ... )
    >>> layer(x, x, use_causal_mask=True).shape
    TensorShape([1, 50, 32])

    With a first token that attends to the whole document:

    >>> layer = MultiHeadAttention([LocalHeads(4, 16)], num_global_tokens=1)
    >>> first = keras.ops.arange(50)[None] == 0
    >>> layer(x, x, global_mask=first).shape
    TensorShape([1, 50, 32])
    """

    def __init__(
        self,
        head_groups,
        key_dim=None,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        use_head_dense=False,
        output_shape=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        seed=None,
        num_key_value_heads=None,
        rotary_embedding=None,
        num_global_tokens=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        conv_kernel_size=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        if not are_head_groups(head_groups):
            raise ValueError(
                "head_groups must be a list of at least one head group, such as "
                "[LocalHeads(2, block_size=64), RoutingHeads(2, num_clusters=16, window_size=64)]. "
                "keras.layers.MultiHeadAttention(num_heads, key_dim) corresponds to "
                f"[FullHeads(num_heads)]. Received: head_groups={head_groups!r}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1). Received: dropout={dropout}")
        self.head_groups = list(head_groups)
        kernel_initializer = keras.initializers.get(kernel_initializer)
        bias_initializer = keras.initializers.get(bias_initializer)
        kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        bias_regularizer = keras.regularizers.get(bias_regularizer)
        kernel_constraint = keras.constraints.get(kernel_constraint)
        bias_constraint = keras.constraints.get(bias_constraint)
        if not isinstance(rotary_embedding, (keras.layers.Layer, type(None))):
            needed = "a layer, such as keras_hub.layers.RotaryEmbedding()"
            raise wrong_value("rotary_embedding", needed, rotary_embedding)
        store_arguments(self, locals(), ["head_groups", "output_shape", "activity_regularizer"])
        self.output_dim = positive_int_or_none("output_shape", output_shape)
        # The dense layers apply it. With the base layer's attribute name, it would count twice.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        for name in ("key_dim", "value_dim", "num_key_value_heads"):
            positive_int_or_none(name, getattr(self, name))
        # A kernel of one position would only scale the vectors.
        positive_int_or_none("conv_kernel_size", conv_kernel_size, least=2)
        if num_key_value_heads is not None:
            self._check_grouped_queries(num_key_value_heads)
        check_global_tokens(num_global_tokens, head_groups)
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None

    @property
    def num_heads(self):
        """The number of heads in all groups."""
        return sum(group.num_heads for group in self.head_groups)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        key_dim, value_dim = self.build_denses(query_shape, value_shape, key_shape)
        for group in self.head_groups:
            if self.rotary_embedding is not None:
                group.rotated_at = self.rotated_at
            query = query_shape[0], group.num_heads, query_shape[1], key_dim
            value = value_shape[0], group.num_heads // self._shared_by, value_shape[1], value_dim
            # Layers that are given the same group share its weights.
            if group.built:
                group.check_built_for(query, value)
            else:
                group.build(query, value)
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        global_mask=None,
        segment_ids=None,
        positions=None,
    ):
        if return_attention_scores:
            check_scores(self.head_groups)
        key = value if key is None else key
        of_queries, of_keys, of_pairs = split_attention_mask(
            attention_mask, self.num_heads, query, value
        )
        options = {
            "query_mask": _all_of(query_mask, of_queries),
            "key_mask": _all_of(value_mask, key_mask, of_keys),
            "use_causal_mask": use_causal_mask,
        }
        if segment_ids is not None:
            check_documents(segment_ids, query, key, global_mask)
            options["documents"] = documents = number_documents(segment_ids)
            positions = positions_in_documents(documents) if positions is None else positions
        convolve = self._convolve_with(**options)
        start = 0 if positions is None else positions
        handed_out = self._hand_out(*self._project(query, key, value, start, convolve))
        outputs, scores = [], []
        if global_mask is not None:
            check_global_mask(global_mask, self.num_global_tokens, query, value, of_pairs)
            global_mask = _all_of(global_mask, options["query_mask"], options["key_mask"])
            options["global_tokens"] = find_global_tokens(global_mask, self.num_global_tokens)
        masks, gates = self._hand_out_pairs(of_pairs), self._hand_out_gates(query)
        calls = [
            (*of_group, {**options, "attention_mask": mask, **of_gates})
            for of_group, mask, of_gates in zip(handed_out, masks, gates)
        ]
        for observe in OBSERVERS.get():
            observe(self, calls)
        for group, arguments, of_group in calls:
            seed = draw_seed(self.seed_generator) if training and self.dropout else None
            outputs.append(
                group(*arguments, **of_group, dropout=self.dropout, seed=seed, training=training)
            )
            if return_attention_scores:
                scores.append(attention_scores(group, arguments, of_group))
        output = self._merge(outputs)
        return (output, tf.concat(scores, axis=1)) if return_attention_scores else output

    def _hand_out_pairs(self, mask):
        """Returns each group's mask of pairs, `[batch, heads or 1, queries, keys]`, or None."""
        if mask is None or mask.shape[1] == 1:
            return [mask] * len(self.head_groups)
        return tf.split(mask, [group.num_heads for group in self.head_groups], axis=1)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        return (*query_shape[:-1], output_dim)

    def compute_output_spec(self, *args, **kwargs):
        given = inspect.signature(MultiHeadAttention.call).bind(self, *args, **kwargs).arguments
        query, value = given["query"], given["value"]
        mask, global_mask = given.get("attention_mask"), given.get("global_mask")
        if mask is not None:
            check_attention_mask(mask.shape, self.num_heads, query.shape, value.shape)
        if global_mask is not None:
            check_global_mask(global_mask, self.num_global_tokens, query, value)
        shape = self.compute_output_shape(query.shape, value.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not given.get("return_attention_scores"):
            return output
        check_scores(self.head_groups)
        shape = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            **saved_arguments(self),
            "output_shape": self.output_dim,
            "activity_regularizer": keras.regularizers.serialize(self._activity_regularizer),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**with_layers(config, "head_groups", "rotary_embedding"))


def are_head_groups(x):
    """Returns whether x is a non-empty list of head groups."""
    return isinstance(x, (list, tuple)) and bool(x) and all(isinstance(y, HeadGroup) for y in x)


def _all_of(*masks):
    """Returns the positions that every given mask allows, or None without masks."""
    masks = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
    return tf.reduce_all(tf.stack(masks), axis=0) if masks else None
