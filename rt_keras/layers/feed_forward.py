"""The position-wise feed-forward network of a Transformer block."""

import keras
import tensorflow as tf

from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.same_shape import SameShape


@keras.saving.register_keras_serializable(package="rt_keras")
class FeedForward(SameShape):
    """Two dense layers with an activation between them, which may be gated ("geglu").

    ```
    FeedForward(x) = activation(x W_1 + b_1) W_2 + b_2
    GEGLU(x) = (gelu(x W_1 + b_1) * (x V + c)) W_2 + b_2
    ```

    "geglu_approximate" uses gelu(x) = x / 2 (1 + tanh(sqrt(2 / π) (x + 0.044715 x³))), as do the
    checkpoints of the paper's authors.

    Args:
        intermediate_dim: int, width between the two layers.
        activation: "geglu", "geglu_approximate", or any Keras activation. Defaults to "geglu".
        dropout: float, fraction of the activations set to 0 in training. Defaults to 0.
        use_bias: bool, whether the dense layers use biases. Defaults to True.
        kernel_initializer: initializer of the dense layers. Defaults to "glorot_uniform".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        training: bool, whether to apply dropout.

    Returns:
        `[batch, length, width]`.

    Raises:
        ValueError: if a size is not a positive integer or the activation is unknown.

    Source: Vaswani et al. 2017, section 3.3; Shazeer 2020, GLU Variants Improve Transformer.

    >>> FeedForward(64, activation="geglu")(keras.random.normal([2, 5, 16])).shape
    TensorShape([2, 5, 16])
    """

    def __init__(
        self,
        intermediate_dim,
        activation="geglu",
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)
        self.activation = activation
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gated, self._activation = activation_function(activation)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        inner = self.intermediate_dim
        self.inner_dense = self._dense("inner", 2 * inner if self.gated else inner)
        self.inner_dense.build(input_shape)
        self.output_dense = self._dense("output", input_shape[-1])
        self.output_dense.build((*input_shape[:-1], inner))
        self.built = True

    def _dense(self, name, units):
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, inputs, training=None):
        # [batch, length, width] -> [batch, length, intermediate_dim]
        x = self._activation(self.inner_dense(inputs))
        return self.output_dense(self.dropout_layer(x, training=training))

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.saving.serialize_keras_object(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def activation_function(name):
    """Returns whether an activation is gated by half of its inputs, and its function.

    Args:
        name: "geglu", "geglu_approximate", or any Keras activation.
    """
    if name not in ("geglu", "geglu_approximate"):
        return False, keras.activations.get(name)

    def gated(x):
        x, gate = tf.split(x, 2, axis=-1)
        return keras.activations.gelu(x, approximate=name == "geglu_approximate") * gate

    return True, gated
