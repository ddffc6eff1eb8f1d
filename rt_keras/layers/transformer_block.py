"""A Transformer block: attention and a feed-forward network, each with a residual."""

import functools
import inspect

import keras
import tensorflow as tf

from rt_keras.layers.cached_block import CachedBlock
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.feed_forward import FeedForward
from rt_keras.layers.mixture_of_experts import MixtureOfExperts
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.layers.normalization import make_normalization
from rt_keras.layers.product_key_memory import ProductKeyMemory
from rt_keras.layers.rematerialize import rematerialize
from rt_keras.layers.same_shape import SameShape
from rt_keras.layers.saved_arguments import with_layers
from rt_keras.layers.token_shift import TokenShift


@keras.saving.register_keras_serializable(package="rt_keras")
class TransformerBlock(CachedBlock, SameShape):
    """A Transformer block: attention with several kinds of heads, then a feed-forward network.

    ```
    pre-norm:   x = x + dropout(f(shift(LN(x))))
    post-norm:  x = LN(x + dropout(f(shift(x))))
    rezero:     x = x + dropout(α f(shift(x)))
    for f in self-attention [, cross-attention], feed-forward
    ```

    Args:
        head_groups: list of head groups, such as `LocalHeads` and `RoutingHeads`.
        intermediate_dim: int, width of the feed-forward network.
        cross_head_groups: list of head groups that attend to an encoder's output. None for a block
            without cross-attention. Defaults to None.
        key_dim: int, depth of a head's queries and keys. Defaults to the width divided by the
            number of heads.
        value_dim: int, depth of a head's values. Defaults to `key_dim`.
        activation: activation of the feed-forward network; see `FeedForward`. Defaults to "geglu".
        normalize_first: bool, True for pre-norm and False for post-norm. Defaults to True.
        normalization: string, the normalization LN: "layer_norm"; "rms_norm", without mean and
            bias; "scale_norm", which scales all vectors to one length (see `ScaleNormalization`);
            or "rezero", which replaces normalization by a scalar α per residual, initialized with 0
            (see `ResidualWeight`). Defaults to "layer_norm".
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
        feed_forward_chunk_size: int or None, number of positions that the feed-forward network
            computes at once; see `FeedForward`. None for all. Defaults to None.
        num_experts: int or None, number of networks of a `MixtureOfExperts`, which replaces the
            feed-forward network. None for a single network. Defaults to None.
        experts_per_token: int, number of experts per position. Defaults to 2.
        expert_capacity_factor: float or None, capacity of an expert in training, relative to an
            equal share; at least 1. None for no limit. Defaults to 1.25.
        product_keys: int or None, number of keys per half of a `ProductKeyMemory`, which replaces
            the feed-forward network. None for no memory. A backbone also accepts a list with one
            number per block. Defaults to None.
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

    Returns:
        `[batch, length, width]`, and the attention weights if requested.

    Raises:
        ValueError: if an argument is out of range, or the number of heads does not divide the width
            and `key_dim` is not given.

    Source: Vaswani et al. 2017, section 3; pre-norm: Xiong et al. 2020.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> block = TransformerBlock([LocalHeads(2, 16), RoutingHeads(2, 4, 16)], intermediate_dim=64)
    >>> block(keras.random.normal([1, 50, 32]), use_causal_mask=True).shape
    TensorShape([1, 50, 32])
    """

    def __init__(
        self,
        head_groups,
        intermediate_dim,
        cross_head_groups=None,
        *,
        key_dim=None,
        value_dim=None,
        activation="geglu",
        normalize_first=True,
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
        feed_forward_chunk_size=None,
        num_experts=None,
        experts_per_token=2,
        expert_capacity_factor=1.25,
        product_keys=None,
        conv_kernel_size=None,
        remat=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(normalize_first, bool):
            raise ValueError(
                "normalize_first must be True (pre-norm) or False (post-norm). Received: "
                f"normalize_first={normalize_first!r}"
            )
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.activation = activation
        if normalization == "rezero" and not normalize_first:
            raise ValueError('normalization="rezero" needs normalize_first=True. Received: False')
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.shift_tokens = shift_tokens
        self.attention_bias = attention_bias
        self.feed_forward_bias = feed_forward_bias
        self.use_head_dense = use_head_dense
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.feed_forward_chunk_size = feed_forward_chunk_size
        self.num_experts = num_experts
        self.experts_per_token = experts_per_token
        self.expert_capacity_factor = expert_capacity_factor
        self.product_keys = product_keys
        self.conv_kernel_size = conv_kernel_size
        self.remat = remat
        self.attention = self._attention(head_groups, "attention", conv_kernel_size)
        self.cross_attention = None
        if cross_head_groups is not None:
            self.cross_attention = self._attention(cross_head_groups, "cross_attention")
        self.feed_forward = self._feed_forward()
        for name in self._names:
            norm = make_normalization(
                normalization, layer_norm_epsilon, self.dtype_policy, f"{name}_norm"
            )
            setattr(self, f"{name}_norm", norm)
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

    def _feed_forward(self):
        others = {"num_experts": self.num_experts, "product_keys": self.product_keys}
        others["feed_forward_chunk_size"] = self.feed_forward_chunk_size
        given = {name: value for name, value in others.items() if value is not None}
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} cannot be combined. Received: "
                f"{', '.join(f'{name}={value}' for name, value in given.items())}"
            )
        shared = {
            "kernel_initializer": self.kernel_initializer,
            "dtype": self.dtype_policy,
            "name": "feed_forward",
        }
        if self.product_keys is not None:
            return ProductKeyMemory(self.product_keys, **shared)
        rate = self.dropout if self.activation_dropout is None else self.activation_dropout
        shared |= {
            "activation": self.activation,
            "dropout": rate,
            "use_bias": self.feed_forward_bias,
        }
        if self.num_experts is None:
            chunk_size = self.feed_forward_chunk_size
            return FeedForward(self.intermediate_dim, chunk_size=chunk_size, **shared)
        return MixtureOfExperts(
            self.num_experts,
            self.intermediate_dim,
            self.experts_per_token,
            self.expert_capacity_factor,
            **shared,
        )

    def _fed_forward(self, x, padding_mask, training):
        """Computes the feed-forward network, or the experts or memory that replace it."""
        if isinstance(self.feed_forward, FeedForward):
            return self.feed_forward(x, training=training)
        return self.feed_forward(x, mask=padding_mask, training=training)

    def build(self, input_shape):
        self.width = input_shape[-1]
        self.attention.build(input_shape, input_shape)
        if self.cross_attention is not None:
            self.cross_attention.build(input_shape, (input_shape[0], None, input_shape[-1]))
        self.feed_forward.build(input_shape)
        for name in self._names:
            self._norm_of(name).build(input_shape)
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
    ):
        tensors = {
            "inputs": inputs,
            "padding_mask": mask if padding_mask is None else padding_mask,
            "encoder_outputs": encoder_outputs,
            "encoder_padding_mask": encoder_padding_mask,
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
        return_attention_scores=False,
        **options,
    ):
        of_self, shift = self._functions(padding_mask, **options)
        scores = []

        def attention(x):
            if not return_attention_scores:
                return of_self["attention"](x)
            output, found = of_self["attention"](x, return_attention_scores=True)
            scores.append(found)
            return output

        def cross_attention(x):
            return self.cross_attention(
                x,
                encoder_outputs,
                query_mask=padding_mask,
                value_mask=encoder_padding_mask,
                training=options["training"],
            )

        functions = {**of_self, "attention": attention, "cross_attention": cross_attention}
        output = self._residuals(inputs, functions, shift, options["training"])
        return (output, *scores) if return_attention_scores else output

    def _functions(self, padding_mask, use_causal_mask, training):
        """Returns self-attention and the feed-forward network by name, and the token shift."""
        masks = {"query_mask": padding_mask, "value_mask": padding_mask}
        attention = functools.partial(
            self.attention, use_causal_mask=use_causal_mask, training=training, **masks
        )
        functions = {
            "attention": lambda x, **options: attention(x, x, **options),
            "feed_forward": lambda x: self._fed_forward(x, padding_mask, training),
        }
        return functions, lambda name, x: self.token_shift(x, mask=padding_mask)

    def branches(self, **options):
        """Returns the branches of the residuals of a pre-norm block.

        Args:
            **options: `padding_mask`, `use_causal_mask` and `training` of a call.

        Returns:
            Two functions of `[batch, length, width]`: the branch of attention and that of the
            feed-forward network.
        """
        functions, shift = self._functions(**options)
        training = options["training"]
        return [
            lambda x, name=name: self._branch(name, x, functions, shift, training)
            for name in functions
        ]

    def _residuals(self, x, functions, shift, training):
        """Computes the output of the block, with a residual around each function.

        Args:
            x: `[batch, length, width]`, or a pair of such tensors, the two streams of
                `ReversibleBlocks`.
            functions: dictionary of functions of such a tensor, by name.
            shift: function of a name and the inputs of the function with that name; returns the
                inputs with shifted tokens. Used only with `shift_tokens`.
            training: bool.
        """
        if isinstance(x, tuple):
            first, second = x
            first = add(first, self._branch("attention", second, functions, shift, training))
            branch = self._branch("feed_forward", first, functions, shift, training)
            return first, add(second, branch)
        for name in self._names:
            x = add(x, self._branch(name, x, functions, shift, training))
            x = x if self.normalize_first else self._norm_of(name)(x)
        return x

    def _branch(self, name, x, functions, shift, training):
        """Computes the branch of one function, which the residual adds to x."""
        norm, rezero = self._norm_of(name), self.normalization == "rezero"
        x = norm(x) if self.normalize_first and not rezero else x
        x = functions[name](x if self.token_shift is None else shift(name, x))
        return self.dropout_layer(norm(x) if rezero else x, training=training)

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
        }

    @classmethod
    def from_config(cls, config):
        return cls(**with_layers(config, "head_groups", "cross_head_groups"))


# The keyword-only arguments of `TransformerBlock` and their defaults, which backbones pass on.
BLOCK_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(TransformerBlock.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}


def add(x, y):
    """Returns x + y in the dtype of x."""
    return x + tf.cast(y, x.dtype)
