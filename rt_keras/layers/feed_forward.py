"""The position-wise feed-forward network of a Transformer block."""

import keras
import tensorflow as tf

from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int, positive_int_or_none
from rt_keras.layers.same_shape import SameShape
from rt_keras.ops.blocks import size
from rt_keras.ops.chunks import map_chunks


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
        chunk_size: int or None, number of positions of a sequence that are computed at once. The
            gradient computes each chunk a second time. None for all positions. Sequences are not
            divided if their length is unknown when the function is traced. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        training: bool, whether to apply dropout.

    Returns:
        `[batch, length, width]`.

    Raises:
        ValueError: if a size is not a positive integer or the activation is unknown.

    Source: Vaswani et al. 2017, section 3.3; Shazeer 2020, GLU Variants Improve Transformer;
    chunks: Kitaev et al. 2020, Reformer, section 3.

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
        chunk_size=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)
        self.activation = activation
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.chunk_size = positive_int_or_none("chunk_size", chunk_size)
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
        length = inputs.shape[1]
        if None in (self.chunk_size, length) or length <= self.chunk_size:
            return self._compute(inputs, training)
        chunks = -(-length // self.chunk_size)
        x = tf.pad(inputs, [[0, 0], [0, chunks * self.chunk_size - length], [0, 0]])
        x = tf.reshape(x, [size(inputs, 0), chunks, self.chunk_size, inputs.shape[2]])
        sliced = {"inputs": tf.transpose(x, [1, 0, 2, 3])}
        if training and self.dropout:
            sliced["seed"] = self._seeds(chunks)
        # Under a mixed policy, a variable converts to the compute dtype. The cast reverts this, so
        # that the gradients of the chunks are summed in the variable's dtype.
        weights = {x.path: tf.cast(x, x.dtype) for x in self.trainable_variables}

        def compute(chunk, weights):
            values = [(x, weights[x.path]) for x in self.trainable_variables]
            if "seed" in chunk:
                values.append((self.dropout_layer.seed_generator.state, chunk["seed"]))
            with keras.StatelessScope(values):
                return self._compute(chunk["inputs"], training)

        output = tf.transpose(map_chunks(compute, sliced, weights, x.dtype), [1, 0, 2, 3])
        output = tf.reshape(output, [size(inputs, 0), -1, inputs.shape[2]])
        return output[:, :length]

    def _seeds(self, count):
        """Returns the states of the dropout's seed generator in the next `count` calls."""
        state = self.dropout_layer.seed_generator.state
        first = tf.convert_to_tensor(state)
        numbers = tf.range(count + 1, dtype=first.dtype)
        states = first + tf.stack([tf.zeros_like(numbers), numbers], axis=1)
        state.assign(states[-1])
        return states[:-1]

    def _compute(self, inputs, training):
        x = self._activation(self.inner_dense(inputs))
        return self.output_dense(self.dropout_layer(x, training=training))


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
