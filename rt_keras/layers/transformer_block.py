"""A Transformer block: attention and a feed-forward network, each with a residual."""

import functools
import inspect

import keras
import tensorflow as tf

from rt_keras.keys import wrong_value
from rt_keras.layers.cached_block import CachedBlock
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.feed_forward import FeedForward
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.layers.normalization import make_normalization, own_normalization
from rt_keras.layers.own_layers import (
    OwnLayers,
    build_own,
    call_own,
    own_config,
    own_feed_forward,
    with_own_layers,
)
from rt_keras.layers.rematerialize import rematerialize
from rt_keras.layers.same_shape import SameShape
from rt_keras.layers.saved_arguments import store_arguments, with_layers
from rt_keras.layers.token_shift import TokenShift
from rt_keras.ops.documents import number_documents


@keras.saving.register_keras_serializable(package="rt_keras")
class TransformerBlock(CachedBlock, SameShape):
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
        kernel_initializer = keras.initializers.get(kernel_initializer)
        store_arguments(
            self, locals(), ["head_groups", "cross_head_groups", "feed_forward", "normalization"]
        )
        self._normalization = own_normalization(normalization)
        self.attention = self._attention(head_groups, "attention", conv_kernel_size)
        self.cross_attention = None
        if cross_head_groups is not None:
            self.cross_attention = self._attention(cross_head_groups, "cross_attention")
        self._own_feed_forward = own_feed_forward(feed_forward)
        own = self._own_feed_forward and self._own_feed_forward("feed_forward")
        self.feed_forward = self._default_feed_forward() if own is None else own
        for name in self._names:
            norm = make_normalization(
                self._normalization, layer_norm_epsilon, self.dtype_policy, f"{name}_norm"
            )
            setattr(self, f"{name}_norm", norm)
        own = {"feed_forward": self._own_feed_forward, "normalization": self._normalization}
        refuse_unused({name: getattr(self, name) for name in REPLACED_WITH} | own)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.token_shift = None
        if shift_tokens:
            self.token_shift = TokenShift(dtype=self.dtype_policy, name="token_shift")

    def _attention(self, head_groups, name, conv_kernel_size=None):
        rate = self.dropout if self.attention_dropout is None else self.attention_dropout
        return MultiHeadAttention(
            head_groups,
            self.key_dim,
            self.value_dim,
            dropout=rate,
            use_bias=self.attention_bias,
            use_head_dense=self.use_head_dense,
            kernel_initializer=self.kernel_initializer,
            conv_kernel_size=conv_kernel_size,
            dtype=self.dtype_policy,
            name=name,
        )

    def _default_feed_forward(self):
        rate = self.dropout if self.activation_dropout is None else self.activation_dropout
        return FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=rate,
            use_bias=self.feed_forward_bias,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    @property
    def normalization(self):
        """The option: a string, or a list of the layers that were given, one per residual."""
        if isinstance(self._normalization, OwnLayers):
            return [self._norm_of(name) for name in self._names]
        return self._normalization

    def build(self, input_shape):
        self.width = input_shape[-1]
        self.attention.build(input_shape, input_shape)
        if self.cross_attention is not None:
            self.cross_attention.build(input_shape, (input_shape[0], None, input_shape[-1]))
        build_own(self.feed_forward, input_shape, self.compute_dtype, "feed_forward")
        for name in self._names:
            build_own(self._norm_of(name), input_shape, self.compute_dtype, "normalization")
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
        options = {"use_causal_mask": use_causal_mask, "training": training}
        if return_attention_scores:
            return self._compute(**tensors, **options, return_attention_scores=True)
        compute = functools.partial(self._compute, **options)
        return rematerialize(self, compute, tensors) if self.remat else compute(**tensors)

    def _compute(
        self,
        inputs,
        padding_mask,
        encoder_outputs,
        encoder_padding_mask,
        segment_ids,
        positions,
        use_causal_mask,
        training,
        return_attention_scores=False,
    ):
        scores = []
        documents = None if segment_ids is None else number_documents(segment_ids)

        def attention(x):
            output = self.attention(
                x,
                x,
                query_mask=padding_mask,
                value_mask=padding_mask,
                use_causal_mask=use_causal_mask,
                training=training,
                return_attention_scores=return_attention_scores,
                segment_ids=segment_ids,
                positions=positions,
            )
            if not return_attention_scores:
                return output
            scores.append(output[1])
            return output[0]

        def cross_attention(x):
            return self.cross_attention(
                x,
                encoder_outputs,
                query_mask=padding_mask,
                value_mask=encoder_padding_mask,
                training=training,
            )

        output = self._residuals(
            inputs,
            {"attention": attention, "cross_attention": cross_attention},
            lambda name, x: self.token_shift(x, mask=padding_mask, documents=documents),
            padding_mask,
            training,
        )
        return (output, *scores) if return_attention_scores else output

    def _residuals(self, x, attentions, shift, padding_mask, training):
        """Computes the output of the block, with a residual around each function.

        Args:
            x: `[batch, length, width]`.
            attentions: dictionary of the functions "attention" and, with an encoder,
                "cross_attention" of such a tensor.
            shift: function of a name and the inputs of the function with that name; returns the
                inputs with shifted tokens. Used only with `shift_tokens`.
            padding_mask: bool or int `[batch, length]`, or None.
            training: bool.
        """

        def feed_forward(x):
            return call_own(self.feed_forward, x, padding_mask, training)

        def norm(name, x):
            # A layer that a user gives may compute in another dtype.
            return tf.cast(call_own(self._norm_of(name), x, padding_mask, training), x.dtype)

        functions = {**attentions, "feed_forward": feed_forward}
        for name in self._names:
            y = norm(name, x) if self.normalize_first else x
            y = functions[name](y if self.token_shift is None else shift(name, y))
            x = add(x, self.dropout_layer(y, training=training))
            x = x if self.normalize_first else norm(name, x)
        return x

    def _norm_of(self, name):
        return getattr(self, f"{name}_norm")

    @property
    def _names(self):
        """The names of the functions with a residual, in order."""
        cross = [] if self.cross_attention is None else ["cross_attention"]
        return ["attention", *cross, "feed_forward"]

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
        return {
            **super().get_config(),
            "head_groups": serialize(self.attention.head_groups),
            "cross_head_groups": serialize(cross),
            "feed_forward": own_config(self._own_feed_forward),
            "normalization": own_config(self.normalization),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**with_own_layers(with_layers(config, "head_groups", "cross_head_groups")))


# The keyword-only arguments of `TransformerBlock` and their defaults, which backbones pass on.
BLOCK_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(TransformerBlock.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}

# Options that concern only the layers which another option can replace.
REPLACED_WITH = {
    "intermediate_dim": "feed_forward",
    "activation": "feed_forward",
    "activation_dropout": "feed_forward",
    "feed_forward_bias": "feed_forward",
    "layer_norm_epsilon": "normalization",
}


def refuse_unused(options):
    """Raises a ValueError if an option is given that concerns only layers that are replaced.

    Args:
        options: dictionary of the options of a block or a backbone, in which `feed_forward` and
            `normalization` have made all of their layers.
    """
    for name, other in REPLACED_WITH.items():
        own, value = options[other], options[name]
        replaced = isinstance(own, OwnLayers) and None not in own.made
        if replaced and value != BLOCK_OPTIONS.get(name):
            raise ValueError(
                f"{name} has no effect on the layers of {other}. Received: {name}={value!r} and "
                f"{other}={own.given}"
            )


def add(x, y):
    """Returns x + y in the dtype of x."""
    return x + tf.cast(y, x.dtype)
