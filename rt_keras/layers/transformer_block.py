"""A Transformer block: attention and a feed-forward network, each with a residual."""

import keras

from rt_keras.layers.feed_forward import FeedForward
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.layers.token_shift import TokenShift


@keras.saving.register_keras_serializable(package="rt_keras")
class TransformerBlock(keras.layers.Layer):
    """Self-attention of mixed heads, then a feed-forward network, each with a residual.

    ```
    pre-norm:   x = x + dropout(f(shift(LN(x))))
    post-norm:  x = LN(x + dropout(f(shift(x))))       for f in attention, feed-forward
    ```

    Args:
        head_groups: list of `LocalHeads`, `RoutingHeads`, `FullHeads`.
        intermediate_dim: width of the feed-forward network.
        key_dim: depth of a head. Defaults to the width over the number of heads.
        activation: of the feed-forward network; see `FeedForward`.
        normalize_first: pre-norm if True, else post-norm.
        dropout: share set to 0 in training, of the activations, of the attention weights and
            before each residual.
        shift_tokens: whether shift is `TokenShift`, so that each position knows the one before it;
            else it changes nothing.
        layer_norm_epsilon: ε of the layer normalisations.
        kernel_initializer: of the dense layers.
        **kwargs: those of `keras.layers.Layer`.

    Call arguments:
        inputs: `[batch, length, width]`.
        padding_mask: bool or int `[batch, length]`, 0 for padding.
        use_causal_mask: whether a position sees no later one.
        training: whether dropout is on and routing heads collect statistics.
        mask: the mask that `inputs` carries, filled by Keras; what counts where there is no
            `padding_mask`.

    Raises:
        ValueError: if the number of heads does not divide the width and `key_dim` is not given.

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
        key_dim=None,
        activation="geglu",
        normalize_first=True,
        dropout=0.0,
        shift_tokens=False,
        layer_norm_epsilon=1e-6,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.activation = activation
        self.normalize_first = normalize_first
        self.dropout = dropout
        self.shift_tokens = shift_tokens
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.attention = MultiHeadAttention(
            head_groups,
            key_dim,
            dropout=dropout,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation,
            dropout,
            self.kernel_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.attention_norm = self._norm("attention_norm")
        self.feed_forward_norm = self._norm("feed_forward_norm")
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.token_shift = None
        if shift_tokens:
            self.token_shift = TokenShift(dtype=self.dtype_policy, name="token_shift")

    def _norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        for layer in (self.feed_forward, self.attention_norm, self.feed_forward_norm):
            layer.build(input_shape)
        self.built = True

    def call(self, inputs, padding_mask=None, use_causal_mask=False, training=None, mask=None):
        padding_mask = mask if padding_mask is None else padding_mask

        def shift(x):
            return x if self.token_shift is None else self.token_shift(x, mask=padding_mask)

        def attention(x):
            x = shift(x)
            return self.attention(
                x,
                x,
                query_mask=padding_mask,
                value_mask=padding_mask,
                use_causal_mask=use_causal_mask,
                training=training,
            )

        def feed_forward(x):
            return self.feed_forward(shift(x), training=training)

        x = self._residual(inputs, attention, self.attention_norm, training)
        return self._residual(x, feed_forward, self.feed_forward_norm, training)

    def _residual(self, x, function, norm, training):
        if self.normalize_first:
            return x + self.dropout_layer(function(norm(x)), training=training)
        return norm(x + self.dropout_layer(function(x), training=training))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "head_groups": [serialize(group) for group in self.attention.head_groups],
            "intermediate_dim": self.intermediate_dim,
            "key_dim": self.key_dim,
            "activation": self.activation,
            "normalize_first": self.normalize_first,
            "dropout": self.dropout,
            "shift_tokens": self.shift_tokens,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    @classmethod
    def from_config(cls, config):
        groups = [keras.saving.deserialize_keras_object(group) for group in config["head_groups"]]
        return cls(**{**config, "head_groups": groups})
