"""A Transformer block: attention and a feed-forward network, each with a residual."""

import typing

import keras
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.layers.block_layers import (
    FEED_FORWARD_OPTIONS,
    NORMALIZATION_OPTIONS,
    LayerMaker,
    build_replaced,
    call_replaced,
    configs_of,
    feed_forward_maker,
    make_normalization,
    normalization_maker,
    with_layer_makers,
)
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.feed_forward import FeedForward
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.layers.rematerialize import rematerialize
from rt_keras.layers.same_shape import SameShape
from rt_keras.layers.saved_arguments import with_layers
from rt_keras.layers.token_shift import TokenShift
from rt_keras.ops.blocks import size
from rt_keras.ops.documents import number_documents


class BlockCall(typing.NamedTuple):
    """The arguments of a call of a block besides its inputs.

    A prefill of `count` positions makes a cache for `max_length` ones. A call with a cache of
    `position` positions continues it by the first `count` ones of each row, or by all.
    """

    padding_mask: typing.Any = None
    encoder_outputs: typing.Any = None
    encoder_padding_mask: typing.Any = None
    segment_ids: typing.Any = None
    positions: typing.Any = None
    use_causal_mask: bool = False
    training: typing.Any = None
    return_attention_scores: bool = False
    cache: typing.Any = None
    position: typing.Any = None
    count: typing.Any = None
    max_length: typing.Any = None
    cross_cache: typing.Any = None


@keras.saving.register_keras_serializable(package="rt_keras")
class TransformerBlock(SameShape):
    """A Transformer block: attention with several kinds of heads, then a feed-forward network.

    ```
    pre-norm:   x = x + dropout(f(shift(LN(x))))
    post-norm:  x = LN(x + dropout(f(shift(x))))
    for f in self-attention [, cross-attention], feed-forward
    ```

    Args:
        head_groups: list of head groups, such as `LocalHeads` and `RoutingHeads`.
        intermediate_dim: int, width of the feed-forward network. Defaults to None, for a
            `feed_forward` that replaces it.
        cross_head_groups: list of head groups that attend to an encoder's output. None for a block
            without cross-attention. Defaults to None.
        key_dim: int, depth of a head's queries and keys. Defaults to the width divided by the
            number of heads.
        value_dim: int, depth of a head's values. Defaults to `key_dim`.
        activation: activation of the feed-forward network; see `FeedForward`. Defaults to "geglu".
        normalize_first: bool, True for pre-norm and False for post-norm. Defaults to True.
        feed_forward: a `keras.layers.Layer` in place of the feed-forward network, of which each
            block gets a copy with weights of its own; or a function that returns a new layer, or
            None for the default. A backbone calls the function with the index of each block, a
            block without arguments. The layer maps `[batch, length, width]` to the same shape. It
            must compute each position by itself: otherwise, outputs depend on later positions, and
            decoding with a cache differs from a whole pass. Only the shape of its output is
            checked. If its call takes `mask`, it receives the padding mask. The layer has its own
            dtype policy. Defaults to None, for a `FeedForward`.
        normalization: the normalization LN: "layer_norm"; "rms_norm", without mean and bias; a
            `keras.layers.Layer`, of which each residual gets a copy; or a function without
            arguments that returns a new layer for each residual. What holds for the layers of
            `feed_forward` holds for these. Defaults to "layer_norm".
        dropout: float, fraction of the units set to 0 in training before each residual. Defaults to
            0.
        attention_dropout: float, fraction of the attention weights set to 0 in training. Defaults
            to `dropout`.
        activation_dropout: float, fraction of the activations set to 0 in training. Defaults to
            `dropout`.
        shift_tokens: bool, whether to apply `TokenShift`, which gives each position features of the
            previous one. Defaults to False.
        attention_bias: bool, whether the dense layers of attention use biases. Defaults to True.
        feed_forward_bias: bool, whether the dense layers of the feed-forward network use biases.
            Defaults to True.
        use_head_dense: bool, whether to apply a dense layer to each head; see `MultiHeadAttention`.
            Defaults to False.
        layer_norm_epsilon: float ε of the normalizations. Defaults to 1e-6.
        kernel_initializer: initializer of the dense layers. Defaults to "glorot_uniform".
        conv_kernel_size: int or None, number of positions in the convolutions of the queries, keys
            and values of self-attention; see `MultiHeadAttention`. A backbone also accepts a list
            with one number per block. None for no convolutions. Defaults to None.
        remat: bool, whether the gradient recomputes the block from its inputs instead of storing
            its activations. This saves memory and takes about 50% more time. Defaults to False.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        padding_mask: bool or int `[batch, length]`, 0 for padding. Defaults to `mask`.
        use_causal_mask: bool, whether positions attend to no later position.
        training: bool, whether to apply dropout and collect statistics of routing heads.
        mask: the mask of `inputs`, set by Keras.
        encoder_outputs: `[batch, encoder_length, width]`, if there are `cross_head_groups`.
        encoder_padding_mask: bool or int `[batch, encoder_length]`, 0 for padding.
        return_attention_scores: bool, whether to also return the weights of self-attention,
            `[batch, heads, length, length]`, at a cost of O(n²) for all kinds of heads.
        segment_ids, positions: int `[batch, length]` or None, the document of each position and
            the positions of rotary embeddings; see `MultiHeadAttention`.

    Returns:
        `[batch, length, width]`, and the attention weights if requested.

    Raises:
        ValueError: if an argument is out of range, the number of heads does not divide the width
            and `key_dim` is not given, or `feed_forward` or `normalization` is neither a layer nor
            a function of layers, or is given with an option of what it replaces.

    Source: Vaswani et al. 2017, section 3; pre-norm: Xiong et al. 2020.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> block = TransformerBlock([LocalHeads(2, 16), RoutingHeads(2, 4, 16)], intermediate_dim=64)
    >>> block(keras.random.normal([1, 50, 32]), use_causal_mask=True).shape
    TensorShape([1, 50, 32])

    With another feed-forward network:

    >>> dense = keras.layers.Dense(32, activation="relu")
    >>> block = TransformerBlock([LocalHeads(4, 16)], feed_forward=dense)
    >>> block(keras.random.normal([1, 50, 32]), use_causal_mask=True).shape
    TensorShape([1, 50, 32])
    """

    def __init__(
        self,
        head_groups,
        intermediate_dim=None,
        cross_head_groups=None,
        *,
        key_dim=None,
        value_dim=None,
        activation="geglu",
        normalize_first=True,
        feed_forward=None,
        normalization="layer_norm",
        dropout=0.0,
        attention_dropout=None,
        activation_dropout=None,
        shift_tokens=False,
        attention_bias=True,
        feed_forward_bias=True,
        use_head_dense=False,
        layer_norm_epsilon=1e-6,
        kernel_initializer="glorot_uniform",
        conv_kernel_size=None,
        remat=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(normalize_first, bool):
            needed = "True (pre-norm) or False (post-norm)"
            raise wrong_value("normalize_first", needed, normalize_first)
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.activation = activation
        self.normalize_first = normalize_first
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.shift_tokens = shift_tokens
        self.attention_bias = attention_bias
        self.feed_forward_bias = feed_forward_bias
        self.use_head_dense = use_head_dense
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.conv_kernel_size = conv_kernel_size
        self.remat = remat

        self.attention = self._attention("attention", head_groups, conv_kernel_size)
        self.cross_attention = None
        if cross_head_groups is not None:
            self.cross_attention = self._attention("cross_attention", cross_head_groups)

        maker, self.feed_forward = feed_forward_maker(feed_forward), None
        if maker is not None:
            self.feed_forward = maker("feed_forward")
            maker.refuse_unused(self, FEED_FORWARD_OPTIONS)
        self.replaces_feed_forward = self.feed_forward is not None
        if not self.replaces_feed_forward:
            self.feed_forward = FeedForward(
                intermediate_dim,
                activation=activation,
                dropout=dropout if activation_dropout is None else activation_dropout,
                use_bias=feed_forward_bias,
                kernel_initializer=self.kernel_initializer,
                dtype=self.dtype_policy,
                name="feed_forward",
            )

        self.normalization = normalization_maker(normalization)
        self.attention_norm = self._norm("attention_norm")
        if self.cross_attention is not None:
            self.cross_attention_norm = self._norm("cross_attention_norm")
        self.feed_forward_norm = self._norm("feed_forward_norm")
        if isinstance(self.normalization, LayerMaker):
            self.normalization.refuse_unused(self, NORMALIZATION_OPTIONS)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.token_shift = None
        if shift_tokens:
            self.token_shift = TokenShift(dtype=self.dtype_policy, name="token_shift")

    def _attention(self, name, head_groups, conv_kernel_size=None):
        return MultiHeadAttention(
            head_groups,
            self.key_dim,
            self.value_dim,
            dropout=self.dropout if self.attention_dropout is None else self.attention_dropout,
            use_bias=self.attention_bias,
            use_head_dense=self.use_head_dense,
            kernel_initializer=self.kernel_initializer,
            conv_kernel_size=conv_kernel_size,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name):
        epsilon, dtype = self.layer_norm_epsilon, self.dtype_policy
        return make_normalization(self.normalization, epsilon, dtype, name)

    @property
    def _norms(self):
        cross = [] if self.cross_attention is None else [self.cross_attention_norm]
        return [self.attention_norm, *cross, self.feed_forward_norm]

    def build(self, input_shape):
        self.width = input_shape[-1]
        self.attention.build(input_shape, input_shape)
        if self.cross_attention is not None:
            self.cross_attention.build(input_shape, (input_shape[0], None, input_shape[-1]))
        build_replaced(self.feed_forward, input_shape, self.compute_dtype, "feed_forward")
        for norm in self._norms:
            build_replaced(norm, input_shape, self.compute_dtype, "normalization")
        self.built = True

    def call(
        self,
        inputs,
        padding_mask=None,
        use_causal_mask=False,
        training=None,
        mask=None,
        encoder_outputs=None,
        encoder_padding_mask=None,
        return_attention_scores=False,
        segment_ids=None,
        positions=None,
    ):
        tensors = {
            "inputs": inputs,
            "padding_mask": mask if padding_mask is None else padding_mask,
            "encoder_outputs": encoder_outputs,
            "encoder_padding_mask": encoder_padding_mask,
            "segment_ids": segment_ids,
            "positions": positions,
        }

        def transform(inputs, **tensors):
            call = BlockCall(
                **tensors,
                use_causal_mask=use_causal_mask,
                training=training,
                return_attention_scores=return_attention_scores,
            )
            return self._transform(inputs, call)

        if self.remat and not return_attention_scores:
            return rematerialize(self, transform, tensors)
        return transform(**tensors)

    def _transform(self, x, call):
        """Returns the output; with a cache or attention weights, a pair of it and these."""
        cache, scores = {}, None

        # Self-attention.
        y = self._pre_norm(self.attention_norm, x, call)
        y = self._shift("attention", y, call, cache)
        if call.max_length is not None:
            y, cache["attention"] = self.attention.prefill(y, call.count, call.max_length)
        elif call.cache is not None:
            y, cache["attention"] = self.attention.call_with_cache(
                y, call.cache["attention"], call.position, call.count, call.training
            )
        else:
            y = self.attention(
                y,
                y,
                query_mask=call.padding_mask,
                value_mask=call.padding_mask,
                use_causal_mask=call.use_causal_mask,
                training=call.training,
                return_attention_scores=call.return_attention_scores,
                segment_ids=call.segment_ids,
                positions=call.positions,
            )
        if call.return_attention_scores:
            y, scores = y
        x = add(x, self.dropout_layer(y, training=call.training))
        x = self._post_norm(self.attention_norm, x, call)

        # Cross-attention.
        if self.cross_attention is not None:
            y = self._pre_norm(self.cross_attention_norm, x, call)
            y = self._shift("cross_attention", y, call, cache)
            if call.cross_cache is not None:
                y = self.cross_attention.call_with_cross_cache(y, call.cross_cache, call.position)
            else:
                y = self.cross_attention(
                    y,
                    call.encoder_outputs,
                    query_mask=call.padding_mask,
                    value_mask=call.encoder_padding_mask,
                    training=call.training,
                )
            x = add(x, self.dropout_layer(y, training=call.training))
            x = self._post_norm(self.cross_attention_norm, x, call)

        # Feed-forward network.
        y = self._pre_norm(self.feed_forward_norm, x, call)
        y = self._shift("feed_forward", y, call, cache)
        y = call_replaced(self.feed_forward, y, call.padding_mask, call.training)
        x = add(x, self.dropout_layer(y, training=call.training))
        x = self._post_norm(self.feed_forward_norm, x, call)

        if call.return_attention_scores:
            return x, scores
        return (x, cache) if cache else x

    def _pre_norm(self, norm, x, call):
        return self._normalize(norm, x, call) if self.normalize_first else x

    def _post_norm(self, norm, x, call):
        return x if self.normalize_first else self._normalize(norm, x, call)

    def _normalize(self, norm, x, call):
        # A layer that a user gives may compute in another dtype.
        return tf.cast(call_replaced(norm, x, call.padding_mask, call.training), x.dtype)

    def _shift(self, name, x, call, cache):
        """Returns the shifted inputs of a function, and adds their last features to the cache."""
        if self.token_shift is None:
            return x
        name = f"{name}_shift"
        if call.cache is not None:
            x, cache[name] = self.token_shift.call_with_cache(x, call.cache[name], call.count)
            return x
        if call.max_length is not None:
            cache[name] = self.token_shift.make_cache(x, call.count)
        documents = None if call.segment_ids is None else number_documents(call.segment_ids)
        return self.token_shift(x, mask=call.padding_mask, documents=documents)

    # Decoding with a cache.

    @property
    def cached_decoding(self):
        """Returns whether all heads support decoding with a cache; see `HeadGroup`."""
        cross = self.cross_attention
        return self.attention.cached_decoding and (cross is None or cross.cached_cross_attention)

    def new_cache(self, batch, max_length):
        """Returns an empty cache for `call_with_cache`.

        Args:
            batch: int or int scalar, number of rows.
            max_length: int, final number of positions.

        Returns:
            A dictionary of the cache of the attention and, with `shift_tokens`, the features that
            the next position takes from the last one.
        """
        cache = {"attention": self.attention.new_cache(batch, max_length)}
        if self.token_shift is not None:
            half = self.width - self.width // 2
            cross = [] if self.cross_attention is None else ["cross_attention_shift"]
            for name in ("attention_shift", *cross, "feed_forward_shift"):
                cache[name] = tf.zeros([batch, half], self.compute_dtype)
        return cache

    def prefill(self, inputs, count, max_length, cross_cache=None):
        """Computes a causal call on the first positions, and their cache.

        Args:
            inputs: `[batch, length, width]`.
            count: int scalar, number of positions in the cache.
            max_length: int, final number of positions.
            cross_cache: dictionary returned by `cross_attention.make_cross_cache` for the encoder's
                output, if there are `cross_head_groups`. Defaults to None.

        Returns:
            `[batch, length, width]`, and the cache.
        """
        call = BlockCall(
            training=False, count=count, max_length=max_length, cross_cache=cross_cache
        )
        return self._transform(inputs, call)

    def call_with_cache(
        self, inputs, cache, position, cross_cache=None, count=None, training=False
    ):
        """Computes a causal call on the next positions, given the cache of the previous ones.

        Args:
            inputs: `[batch, length, width]`. With `cross_head_groups` the length must be 1.
            cache: the cache of `prefill`, `new_cache` or the previous call.
            position: int scalar or `[batch]`, number of previous positions.
            cross_cache: see `prefill`.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them. None for all. Defaults to None.
            training: bool, whether to apply dropout and collect statistics of routing heads.
                Defaults to False.

        Returns:
            `[batch, length, width]`, and the cache that includes these positions.
        """
        mask = None if count is None else tf.range(size(inputs, 1)) < count[:, None]
        call = BlockCall(
            padding_mask=mask,
            training=training,
            cache=cache,
            position=position,
            count=count,
            cross_cache=cross_cache,
        )
        return self._transform(inputs, call)

    def call_in_place(self, inputs, cache, position, cross_cache=None):
        """Computes the next positions as `call_with_cache` does, and updates the cache.

        Args:
            inputs, position, cross_cache: see `call_with_cache`.
            cache: the cache, with a `tf.Variable` in place of each tensor.

        Returns:
            `[batch, length, width]`.
        """
        values = tf.nest.map_structure(tf.convert_to_tensor, cache)
        output, values = self.call_with_cache(inputs, values, position, cross_cache)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), cache, values)
        return output

    # Keras.

    def compute_output_spec(self, inputs, *args, return_attention_scores=False, **kwargs):
        output = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length = inputs.shape[:2]
        shape = (batch, self.attention.num_heads, length, length)
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        cross = self.cross_attention and self.cross_attention.head_groups
        replaced = isinstance(self.normalization, LayerMaker)
        return {
            **super().get_config(),
            "head_groups": serialize(self.attention.head_groups),
            "intermediate_dim": self.intermediate_dim,
            "cross_head_groups": serialize(cross),
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "activation": serialize(self.activation),
            "normalize_first": self.normalize_first,
            "feed_forward": configs_of([self.feed_forward]) if self.replaces_feed_forward else None,
            "normalization": configs_of(self._norms) if replaced else self.normalization,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "shift_tokens": self.shift_tokens,
            "attention_bias": self.attention_bias,
            "feed_forward_bias": self.feed_forward_bias,
            "use_head_dense": self.use_head_dense,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": serialize(self.kernel_initializer),
            "conv_kernel_size": self.conv_kernel_size,
            "remat": self.remat,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**with_layer_makers(with_layers(config, "head_groups", "cross_head_groups")))


def add(x, y):
    """Returns x + y in the dtype of x."""
    return x + tf.cast(y, x.dtype)
