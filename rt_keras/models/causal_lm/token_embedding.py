"""Embedding of token ids, before the first block."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras import layers
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int, positive_int_or_none
from rt_keras.layers.token_dropout import TokenDropout
from rt_keras.ops.blocks import places_of_rows, size


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerEmbedding(keras.layers.Layer):
    """Embeds tokens in the width of the blocks and adds positions.

    ```
    x = sqrt(hidden_dim) embedding(token_ids)        without `embedding_dim`
    x = embedding(token_ids) W + b                   with `embedding_dim`
    x = x [+ position embedding] [+ sines and cosines of the position]
    ```

    Args:
        vocabulary_size: int, number of token ids.
        hidden_dim: int, width of the blocks.
        embedding_dim: int, width of the embedding, which a dense layer then projects to
            `hidden_dim`. Defaults to None, for `hidden_dim` and no dense layer.
        max_sequence_length: int, number of learned position embeddings. Defaults to None, for no
            position embedding.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions`. Defaults
            to False.
        embedding_dropout: float, dropout rate of the embedding. Defaults to 0.0.
        token_dropout: float, probability of replacing a token by 0 in training. Defaults to 0.0.
        kernel_initializer: initializer of the dense layer and, with `embedding_dim`, of the
            embedding. Defaults to `"glorot_uniform"`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: int `[batch, length]`.
        training: bool, whether to apply dropout.
        start: int or scalar tensor, the first position; or int `[batch]`, that of each row.
            Defaults to 0.
        positions: int `[batch, length]`, instead of those from `start`; or None.

    Returns:
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Lan et al. 2020, ALBERT, section 3.1, for factorized embeddings.

    >>> embedding = RoutingTransformerEmbedding(vocabulary_size=20, hidden_dim=8, embedding_dim=4)
    >>> embedding(keras.ops.ones([1, 5], "int32")).shape
    TensorShape([1, 5, 8])
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        embedding_dim=None,
        max_sequence_length=None,
        sinusoidal_positions=False,
        embedding_dropout=0.0,
        token_dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = positive_int("vocabulary_size", vocabulary_size)
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.embedding_dim = positive_int_or_none("embedding_dim", embedding_dim)
        self.max_sequence_length = positive_int_or_none("max_sequence_length", max_sequence_length)
        self.sinusoidal_positions = sinusoidal_positions
        self.embedding_dropout = embedding_dropout
        self.token_dropout = token_dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        # Small, so that logits start small if the output shares these weights.
        initializer = keras.initializers.RandomNormal(stddev=(embedding_dim or hidden_dim) ** -0.5)
        if embedding_dim is not None:
            initializer = self.kernel_initializer.clone()
        options = {"dtype": self.dtype_policy}
        self.token_embedding = keras_hub.layers.ReversibleEmbedding(
            vocabulary_size,
            embedding_dim or hidden_dim,
            embeddings_initializer=initializer,
            name="token_embedding",
            **options,
        )
        self.token_dropout_layer = TokenDropout(token_dropout, **options)
        self.embedding_dropout_layer = Dropout(embedding_dropout, **options)
        self.embedding_dense = self.position_embedding = self.positions = None
        if embedding_dim is not None:
            self.embedding_dense = keras.layers.Dense(
                hidden_dim,
                kernel_initializer=self.kernel_initializer.clone(),
                name="embedding_dense",
                **options,
            )
        if max_sequence_length is not None:
            self.position_embedding = keras_hub.layers.PositionEmbedding(
                max_sequence_length, name="position_embedding", **options
            )
        if sinusoidal_positions:
            self.positions = layers.SinusoidalPositions(**options)

    def build(self, input_shape):
        self.token_embedding.build(input_shape)
        embedded = (*input_shape, self.embedding_dim or self.hidden_dim)
        if self.embedding_dense is not None:
            self.embedding_dense.build(embedded)
        if self.position_embedding is not None:
            self.position_embedding.build((*input_shape, self.hidden_dim))
        self.built = True

    def call(self, inputs, training=None, start=0, positions=None):
        x = self.token_embedding(self.token_dropout_layer(inputs, training=training))
        x = self.embedding_dropout_layer(x, training=training)
        dense = self.embedding_dense
        x = x * self.hidden_dim**0.5 if dense is None else dense(x)
        if positions is None and tf.convert_to_tensor(start).shape.rank:
            positions = places_of_rows(start, tf.range(size(x, 1)))
        if self.position_embedding is not None:
            x = x + self.position_embedding(x, start_index=start, positions=positions)
        return x if self.positions is None else self.positions(x, start=start, positions=positions)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.hidden_dim)

    def compute_output_spec(self, inputs, training=None, start=0, positions=None):
        # Also of arrays, whose shapes Keras does not pass on.
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    @property
    def arguments(self):
        """The arguments of the constructor for `get_config`, which a backbone also has."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "embedding_dim": self.embedding_dim,
            "max_sequence_length": self.max_sequence_length,
            "sinusoidal_positions": self.sinusoidal_positions,
            "embedding_dropout": self.embedding_dropout,
            "token_dropout": self.token_dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def get_config(self):
        return {**super().get_config(), **self.arguments}
