"""Multi-head attention: inputs are projected to heads, each group attends, outputs are merged."""

import keras
import tensorflow as tf

from rt_keras import ops
from rt_keras.arguments import wrong_value
from rt_keras.layers.attention_calls import OBSERVERS, attention_scores, check_scores
from rt_keras.layers.attention_masks import Masks, check_attention_mask, split_attention_mask
from rt_keras.layers.document_caches import read_documents
from rt_keras.layers.dropout import draw_seed
from rt_keras.layers.each_document import check_documents
from rt_keras.layers.global_tokens import check_global_mask, check_global_tokens
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.layers.saved_arguments import saved_dtype, with_layers
from rt_keras.layers.short_convolution import ShortConvolution
from rt_keras.layers.split_heads import (
    Vectors,
    check_grouped_queries,
    constraint_by_head,
    fold_beams,
    hand_out,
    split_heads,
    swap_heads,
    unfold_beams,
)
from rt_keras.ops.blocks import places_of_rows, size
from rt_keras.ops.documents import number_documents, positions_in_documents


@keras.saving.register_keras_serializable(package="rt_keras")
class MultiHeadAttention(keras.layers.Layer):
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
        kernel_initializer, bias_initializer: initializers of the dense layers. Default to
            "glorot_uniform" and "zeros".
        kernel_regularizer, bias_regularizer: regularizers of the weights. Default to None.
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
        activity_regularizer: regularizer of the outputs of the dense layers: queries, keys, values
            and output. Defaults to None.
        kernel_constraint, bias_constraint: constraints of the weights. As in
            `keras.layers.MultiHeadAttention`, they apply to kernels `[features, heads, depth]` and
            `[heads, depth, features]`, and to biases `[heads, depth]`. Default to None.
        conv_kernel_size: int or None, number of positions, up to its own, that are convolved into a
            query, a key and a value; at least 2. None disables the convolutions. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        query: `[batch, queries, features]`.
        value: `[batch, keys, features]`.
        key: `[batch, keys, features]`. Defaults to `value`.
        query_mask: bool `[batch, queries]`, False for padding. Keras sets this mask and the next
            two automatically if tensors have masks.
        value_mask, key_mask: bool `[batch, keys]`, False for padding.
        attention_mask: bool, broadcast to `[batch, heads, queries, keys]`; `[batch, queries, keys]`
            and `[queries, keys]` apply to all heads. Only `FullHeads` support masks of query-key
            pairs. Every group supports a mask that all queries share, such as `[batch, 1, keys]`.
        return_attention_scores: bool, whether to also return the attention weights,
            `[batch, heads, queries, keys]`, at a cost of O(n²) for all kinds of heads.
            `GatedDeltaHeads`, which have no weights of single keys, do not support this.
        training: bool, whether to apply dropout and collect statistics of routing heads.
        use_causal_mask: bool, whether queries attend to no later position.
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
            the other, which costs as much as a row for each; see the ability `documents`. They
            cannot be combined with `global_mask`.
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

    With rotary embeddings and grouped-query attention, as in Llama:

    >>> import keras_hub
    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> layer = MultiHeadAttention(
    ...     [LocalHeads(2, 16), RoutingHeads(2, 4, 16)],
    ...     use_bias=False,
    ...     num_key_value_heads=2,
    ...     rotary_embedding=keras_hub.layers.RotaryEmbedding(),
    ... )
    >>> x = keras.random.normal([1, 50, 32])
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
        if not isinstance(rotary_embedding, (keras.layers.Layer, type(None))):
            needed = "a layer, such as keras_hub.layers.RotaryEmbedding()"
            raise wrong_value("rotary_embedding", needed, rotary_embedding)
        check_global_tokens(num_global_tokens, head_groups)
        self.head_groups = list(head_groups)
        self.key_dim = positive_int_or_none("key_dim", key_dim)
        self.value_dim = positive_int_or_none("value_dim", value_dim)
        self.dropout = dropout
        self.use_bias = use_bias
        self.use_head_dense = use_head_dense
        self.output_dim = positive_int_or_none("output_shape", output_shape)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # The dense layers apply it. With the base layer's attribute name, it would count twice.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed
        self.num_key_value_heads = positive_int_or_none("num_key_value_heads", num_key_value_heads)
        self.rotary_embedding = rotary_embedding
        self.num_global_tokens = num_global_tokens
        # A kernel of one position would only scale the vectors.
        self.conv_kernel_size = positive_int_or_none("conv_kernel_size", conv_kernel_size, least=2)
        if num_key_value_heads is not None:
            check_grouped_queries(head_groups, num_key_value_heads)
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None

    @property
    def num_heads(self):
        """The number of heads in all groups."""
        return sum(group.num_heads for group in self.head_groups)

    @property
    def _queries_per_key(self):
        """The number of consecutive query heads that share a key/value head."""
        return self.num_heads // (self.num_key_value_heads or self.num_heads)

    @property
    def _head_counts(self):
        """The numbers of query heads, key heads and value heads."""
        with_keys = sum(group.num_heads for group in self.head_groups if not group.share_qk)
        shared_by = self._queries_per_key
        return Vectors(self.num_heads, with_keys // shared_by, self.num_heads // shared_by)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        heads, (batch, length, features) = self._head_counts, query_shape
        if self.key_dim is None and features % heads.query:
            raise ValueError(
                f"The {heads.query} heads must divide the {features} features of the query unless "
                "key_dim is given"
            )
        key_dim = self.key_dim or features // heads.query
        value_dim = self.value_dim or key_dim
        output_dim = features if self.output_dim is None else self.output_dim

        self.query_dense = self._dense_to_heads("query", query_shape, heads.query, key_dim)
        self.key_dense = None
        if heads.key:
            self.key_dense = self._dense_to_heads("key", key_shape, heads.key, key_dim)
        self.value_dense = self._dense_to_heads("value", value_shape, heads.value, value_dim)
        self.query_convolution = self._convolution("query", self.query_dense)
        self.key_convolution = self._convolution("key", self.key_dense)
        self.value_convolution = self._convolution("value", self.value_dense)
        if self.rotary_embedding is not None and not self.rotary_embedding.built:
            self.rotary_embedding.build((batch, length, heads.query, key_dim))

        merged = (batch, length, heads.query * value_dim)
        by_head = (heads.query, value_dim, output_dim)
        self.output_dense = self._dense("attention_output", output_dim, merged, by_head)
        self.head_dense = self.gate_dense = None
        if self.use_head_dense:
            shape = (batch, heads.query, length, value_dim)
            self.head_dense = self._dense("head", value_dim, shape, use_bias=False)
        units = sum(x.num_heads * x.num_gates(value_dim) for x in self.head_groups)
        if units:
            self.gate_dense = self._dense("gate", units, query_shape, use_bias=False)

        for group in self.head_groups:
            if self.rotary_embedding is not None:
                group.rotated_at = self.rotated_at
            query = batch, group.num_heads, length, key_dim
            value_heads = group.num_heads // self._queries_per_key
            value = value_shape[0], value_heads, value_shape[1], value_dim
            # Layers that are given the same group share its weights.
            if group.built:
                group.check_built_for(query, value)
            else:
                group.build(query, value)
        self.built = True

    def _dense_to_heads(self, name, input_shape, heads, depth):
        by_head = (input_shape[-1], heads, depth)
        return self._dense(name, heads * depth, input_shape, by_head, (heads, depth))

    def _dense(self, name, units, input_shape, kernel_shape=None, bias_shape=(-1,), use_bias=None):
        """Returns a dense layer, built, whose constraints apply to weights of the given shapes."""
        kernel_shape = kernel_shape or (input_shape[-1], units)
        layer = keras.layers.Dense(
            units,
            use_bias=self.use_bias if use_bias is None else use_bias,
            # Copies, since one seeded initializer would give every layer the same values.
            kernel_initializer=self.kernel_initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=constraint_by_head(self.kernel_constraint, kernel_shape),
            bias_constraint=constraint_by_head(self.bias_constraint, bias_shape),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(input_shape)
        return layer

    def _convolution(self, role, dense):
        """Returns the convolution of queries, keys or values, built, or None without one."""
        if self.conv_kernel_size is None or dense is None:
            return None
        name = f"{role}_convolution"
        layer = ShortConvolution(self.conv_kernel_size, dtype=self.dtype_policy, name=name)
        layer.build((None, None, dense.units))
        return layer

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
        masks = Masks()
        if attention_mask is not None:
            masks = split_attention_mask(attention_mask, self.num_heads, query, value)
        options = {
            "query_mask": _all_of(query_mask, masks.query),
            "key_mask": _all_of(value_mask, key_mask, masks.key),
            "use_causal_mask": use_causal_mask,
        }
        if segment_ids is not None:
            check_documents(segment_ids, query, key, global_mask)
            options["documents"] = documents = number_documents(segment_ids)
            positions = positions_in_documents(documents) if positions is None else positions
        if global_mask is not None:
            check_global_mask(global_mask, self.num_global_tokens, query, value, masks.pairs)
            global_mask = _all_of(global_mask, options["query_mask"], options["key_mask"])
            options["global_tokens"] = ops.find_global_tokens(global_mask, self.num_global_tokens)

        vectors = self._project(query, key, value)
        vectors = self._convolve(vectors, **options)
        heads = self._to_heads(vectors, 0 if positions is None else positions)

        calls = [
            call._replace(options={**options, **call.options})
            for call in hand_out(self.head_groups, heads, self._gates(query), masks.pairs)
        ]
        for observe in OBSERVERS.get():
            observe(self, calls)
        outputs = []
        for group, arguments, options in calls:
            seed = self._next_seed(training)
            output = group(
                *arguments, **options, dropout=self.dropout, seed=seed, training=training
            )
            outputs.append(output)

        output = self._merge(outputs)
        if not return_attention_scores:
            return output
        scores = [attention_scores(call) for call in calls]
        return output, tf.concat(scores, axis=1)

    def _project(self, query, key, value):
        """Returns queries, keys and values `[batch, length, heads * depth]`, None for None."""
        return Vectors(
            None if query is None else self.query_dense(query),
            None if key is None or self.key_dense is None else self.key_dense(key),
            None if value is None else self.value_dense(value),
        )

    @property
    def _convolutions(self):
        """The convolutions by the names of the vectors; empty without `conv_kernel_size`."""
        layers = Vectors(self.query_convolution, self.key_convolution, self.value_convolution)
        return {role: layer for role, layer in layers._asdict().items() if layer is not None}

    def _convolve(self, vectors, query_mask=None, key_mask=None, documents=None, **_):
        """Convolves whole sequences of `[batch, length, heads * depth]`."""
        masks = Vectors(query_mask, key_mask, key_mask)
        convolved = {
            role: layer(getattr(vectors, role), mask=getattr(masks, role), documents=documents)
            for role, layer in self._convolutions.items()
        }
        return vectors._replace(**convolved)

    def _to_heads(self, vectors, start):
        """Returns vectors `[batch, heads, length, depth]`, with rotated queries and keys.

        `start` is the position of the first ones, int scalar or `[batch]`, or all positions,
        `[batch, length]`.
        """
        counts, (query, key, value) = self._head_counts, vectors
        # [batch, length, heads * depth] -> [batch, heads, length, depth]
        if query is not None:
            query = swap_heads(self._rotated(split_heads(query, counts.query), start, "query"))
        if key is not None:
            key = swap_heads(self._rotated(split_heads(key, counts.key), start, "key"))
        if value is not None:
            value = swap_heads(split_heads(value, counts.value))
        return Vectors(query, key, value)

    def _rotated(self, x, start, role):
        """Returns queries or keys `[batch, length, heads, depth]` rotated by their positions.

        The heads of groups that take no rotary embedding stay as they are.
        """
        if self.rotary_embedding is None:
            return x
        positions = tf.convert_to_tensor(start)
        if positions.shape.rank < 2:
            positions = places_of_rows(positions, tf.range(size(x, 1)))
        rotated = tf.cast(self._rotate(x, positions), x.dtype)
        is_rotated = []
        for group in self.head_groups:
            count = group.num_heads
            if role == "key":
                count = 0 if group.share_qk else count // self._queries_per_key
            is_rotated += [group.abilities.rotated] * count
        if all(is_rotated):
            return rotated
        return tf.where(tf.constant(is_rotated)[:, None], rotated, x)

    def _rotate(self, x, positions):
        """Rotates `[batch, length, heads, depth]` by positions `[batch or 1, length]`."""
        return self.rotary_embedding(x, positions=positions)

    def rotated_at(self, x, start, position):
        """Returns queries or keys rotated at one position instead of at their own ones.

        Args:
            x: `[batch, heads, length, depth]`, rotated by the rotary embedding.
            start: int scalar or `[batch]`, position of the first vectors.
            position: int, the new position of all vectors.
        """
        turn = position - places_of_rows(start, tf.range(size(x, 2)))
        return tf.cast(swap_heads(self._rotate(swap_heads(x), turn)), x.dtype)

    def _gates(self, inputs):
        """Returns the gates of all groups that have some, `[batch, length, gates]`, or None."""
        return None if self.gate_dense is None else self.gate_dense(inputs)

    def _next_seed(self, training):
        return draw_seed(self.seed_generator) if training and self.dropout else None

    def _merge(self, outputs):
        """Returns the layer's output, given those of the groups."""
        # [batch, heads, length, value_dim]
        output = tf.concat(outputs, axis=1)
        if self.head_dense is not None:
            output = self.head_dense(output)
        # [batch, heads, length, value_dim] -> [batch, length, heads * value_dim]
        shape = [size(output, 0), size(output, 2), output.shape[1] * output.shape[3]]
        return self.output_dense(tf.reshape(swap_heads(output), shape))

    # Decoding with a cache.

    @property
    def cached_decoding(self):
        """Returns whether all groups support a cache and there are no global tokens."""
        cached = all(group.abilities.cached for group in self.head_groups)
        return cached and self.num_global_tokens is None

    @property
    def reads_chunks(self):
        """Returns whether all groups read several positions in one pass; see `CachedHeads`."""
        return all(group.abilities.chunks for group in self.head_groups)

    @property
    def cached_cross_attention(self):
        """Returns whether all groups support cross-attention of one query at a time.

        `conv_kernel_size` must be None, since no cache contains the previous queries.
        """
        cached = all(group.abilities.across for group in self.head_groups)
        return cached and self.conv_kernel_size is None

    def _check_cached(self):
        if self.num_global_tokens is not None:
            raise ValueError(
                f"{self.name} has num_global_tokens={self.num_global_tokens} and cannot be decoded "
                "with a cache, which contains no keys of global tokens. Call the layer on all "
                "positions so far instead."
            )

    def _cache(self, of_groups, last):
        """Returns a cache: those of the groups and the last vectors before the convolutions."""
        return tuple(of_groups) if self.conv_kernel_size is None else (*of_groups, last)

    def new_cache(self, batch, max_length):
        """Returns an empty cache.

        Args:
            batch: int or int scalar, number of rows.
            max_length: int, final number of positions.

        Returns:
            Tuple with the cache of each group, see `CachedHeads`, and, with `conv_kernel_size`, a
            dictionary of the last queries, keys and values before the convolutions.
        """
        self._check_cached()
        counts = self._head_counts
        key_dim = self.query_dense.units // counts.query
        value_dim = self.value_dense.units // counts.value
        caches = [x.new_cache(batch, max_length, key_dim, value_dim) for x in self.head_groups]
        last = {role: layer.new_cache(batch) for role, layer in self._convolutions.items()}
        return self._cache(caches, last)

    def prefill(self, inputs, count, max_length):
        """Computes causal self-attention of the first positions, and the cache of their keys.

        Args:
            inputs: `[batch, length, features]`.
            count: int scalar, number of positions in the cache.
            max_length: int, final number of positions.

        Returns:
            `[batch, length, output_shape]`, and the cache.
        """
        self._check_cached()
        if inputs.shape[1] == 0:
            return self._no_outputs(inputs), self.new_cache(size(inputs, 0), max_length)
        vectors = self._project(inputs, inputs, inputs)
        last = {
            role: layer.make_cache(getattr(vectors, role), count)
            for role, layer in self._convolutions.items()
        }
        heads = self._to_heads(self._convolve(vectors), 0)
        outputs, caches = [], []
        for group, arguments, gates in hand_out(self.head_groups, heads, self._gates(inputs)):
            output, cache = group.prefill(*arguments, count, max_length, **gates)
            outputs.append(output)
            caches.append(cache)
        return self._merge(outputs), self._cache(caches, last)

    def call_with_cache(
        self, inputs, cache, position, count=None, training=False, segment_ids=None
    ):
        """Computes causal self-attention of the next positions, given the cache.

        The outputs equal those of one call on all positions.

        Args:
            inputs: `[batch, length, features]`, one position or a chunk of the sequences.
            cache: the cache of `prefill`, `new_cache` or the previous call.
            position: int scalar or `[batch]`, number of previous positions.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them. None for all. Defaults to None.
            training: bool, whether to apply dropout and collect statistics. Defaults to False.
            segment_ids: int `[batch, length]` or None, the document of each position, as in a call.
                `position` counts those of a row's first document alone, which begins with the chunk
                if it is 0. Each of the others begins with an empty cache. Defaults to None.

        Returns:
            `[batch, length, output_shape]`, and the cache that includes these positions, with
            `segment_ids` those of each row's last document.

        Raises:
            ValueError: if the cache has another number of entries, or `segment_ids` are given in
                training.

        >>> from rt_keras.layers import LocalHeads, RoutingHeads
        >>> layer = MultiHeadAttention([LocalHeads(2, 4), RoutingHeads(2, 4, 4)])
        >>> x = keras.random.normal([1, 9, 32])
        >>> expected = layer(x, x, use_causal_mask=True)
        >>> output, cache = layer.prefill(x[:, :8], count=8, max_length=9)
        >>> output, cache = layer.call_with_cache(x[:, 8:], cache, position=8)
        >>> bool(keras.ops.max(keras.ops.abs(output - expected[:, 8:])) < 1e-5)
        True
        """
        entries = len(self.head_groups) + (self.conv_kernel_size is not None)
        if len(cache) != entries:
            raise ValueError(
                f"The cache has {len(cache)} entries but that of {self.name} has {entries}. It "
                "must come from this layer's prefill or new_cache."
            )
        if inputs.shape[1] == 0:
            return self._no_outputs(inputs), cache
        if segment_ids is not None:
            reading = inputs, cache, position, count, training, segment_ids
            return read_documents(self, *reading, self.reads_chunks)
        convolved, last = {}, {}
        vectors = self._project(inputs, inputs, inputs)
        for role, layer in self._convolutions.items():
            x, before = getattr(vectors, role), cache[-1][role]
            convolved[role], last[role] = layer.call_with_cache(x, before, count)
        heads = self._to_heads(vectors._replace(**convolved), position)
        outputs, caches = [], []
        calls = hand_out(self.head_groups, heads, self._gates(inputs))
        for (group, arguments, gates), group_cache in zip(calls, cache):
            options = {"count": count, "dropout": self.dropout, "training": training, **gates}
            seed = self._next_seed(training)
            output, group_cache = group.call_with_cache(
                *arguments, group_cache, position, seed=seed, **options
            )
            outputs.append(output)
            caches.append(group_cache)
        return self._merge(outputs), self._cache(caches, last)

    def _no_outputs(self, inputs):
        """Returns the output for sequences of length 0."""
        shape = self.compute_output_shape(inputs.shape, inputs.shape)
        return tf.zeros([size(inputs, 0), *shape[1:]], self.compute_dtype)

    def make_cross_cache(self, value, value_mask=None):
        """Computes the keys and values of another sequence once for all queries.

        Args:
            value: `[batch, keys, features]`.
            value_mask: bool or int `[batch, keys]`, 0 for padding; or None. Defaults to None.

        Returns:
            A dictionary for `call_with_cross_cache`.

        Raises:
            ValueError: if `conv_kernel_size` is not None.
        """
        self._check_cross_cache()
        heads = self._to_heads(self._project(None, value, value), 0)
        mask = None if value_mask is None else tf.cast(value_mask, tf.bool)
        return {"key": heads.key, "value": heads.value, "key_mask": mask}

    def call_with_cross_cache(self, query, cross_cache, position=None):
        """Computes cross-attention of one position, or of the first positions.

        Args:
            query: `[batch, length, features]` for the first positions; `[batch, 1, features]` for
                one position. In the latter case, the batch may be a multiple of the cache's: each
                row of the cache then serves several consecutive queries, the beams of a beam
                search.
            cross_cache: dictionary returned by `make_cross_cache`.
            position: int scalar, or None for the first positions. Defaults to None.

        Returns:
            `[batch, length, output_shape]`.

        Raises:
            ValueError: if `conv_kernel_size` is not None.
        """
        self._check_cross_cache()
        vectors = self._project(query, None, None)
        heads = self._to_heads(vectors, 0 if position is None else position)
        heads = heads._replace(key=cross_cache["key"], value=cross_cache["value"])
        mask, outputs = cross_cache["key_mask"], []
        for group, (queries, value, key), _ in hand_out(self.head_groups, heads):
            if position is None:
                output = group.cross_attention_prefill(queries, value, key, key_mask=mask)
            else:
                queries = fold_beams(queries, size(value, 0))
                output = group.cross_attention_step(queries, value, key, position, key_mask=mask)
                output = unfold_beams(output)
            outputs.append(output)
        return self._merge(outputs)

    def _check_cross_cache(self):
        if self.conv_kernel_size is not None:
            raise ValueError(
                "conv_kernel_size must be None for cross-attention with a cache, which contains no "
                f"previous queries. Received: conv_kernel_size={self.conv_kernel_size} of "
                f"{self.name}. Call the layer on all positions so far instead."
            )

    # Keras.

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        return (*query_shape[:-1], output_dim)

    def compute_output_spec(
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
        if attention_mask is not None:
            check_attention_mask(attention_mask.shape, self.num_heads, query.shape, value.shape)
        if global_mask is not None:
            check_global_mask(global_mask, self.num_global_tokens, query, value)
        shape = self.compute_output_shape(query.shape, value.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        check_scores(self.head_groups)
        shape = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "dtype": saved_dtype(self),
            "head_groups": serialize(self.head_groups),
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "use_head_dense": self.use_head_dense,
            "output_shape": self.output_dim,
            "kernel_initializer": serialize(self.kernel_initializer),
            "bias_initializer": serialize(self.bias_initializer),
            "kernel_regularizer": serialize(self.kernel_regularizer),
            "bias_regularizer": serialize(self.bias_regularizer),
            "seed": self.seed,
            "num_key_value_heads": self.num_key_value_heads,
            "rotary_embedding": serialize(self.rotary_embedding),
            "num_global_tokens": self.num_global_tokens,
            "activity_regularizer": serialize(self._activity_regularizer),
            "kernel_constraint": serialize(self.kernel_constraint),
            "bias_constraint": serialize(self.bias_constraint),
            "conv_kernel_size": self.conv_kernel_size,
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
