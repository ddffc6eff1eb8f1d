"""Embedding of the values of an image, before the first block."""

import keras
import numpy as np
import tensorflow as tf

from rt_keras.ops.blocks import from_blocks, size, to_blocks


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerImageEmbedding(keras.layers.Layer):
    """Embeds the previous value of each position, in the order of the blocks, and the position.

    ```
    x = sqrt(hidden_dim) channel_embedding(channel, previous value)
        + sqrt(channels hidden_dim) (row embedding + column embedding)  [+ class embedding]
    ```

    The embedding of a row or a column has `hidden_dim` entries for each channel. The previous value
    of the first position is 0.

    Args:
        vocabulary_size: int, number of values of a channel.
        hidden_dim: int, width of the blocks.
        image_shape: tuple of ints, `(height, width, channels)`.
        block_shape: tuple of ints, `(b,)` or `(b1, b2)`; see `RoutingTransformerImageBackbone`.
        num_classes: int, number of classes of images. Defaults to None, for images without classes.
        position_embedding: bool, whether rows and columns have embeddings. Defaults to True.
        kernel_initializer: initializer of all embeddings except those of positions. Defaults to
            `"glorot_uniform"`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: int `[batch, height, width, channels]`.
        labels: int `[batch]`, for images with classes. Defaults to None.

    Returns:
        `[batch, height * width * channels, hidden_dim]`, in the order of the blocks.

    Source: Parmar et al. 2018, Image Transformer, section 3; Roy et al. 2021, section 5.1.

    >>> embedding = RoutingTransformerImageEmbedding(256, 8, (4, 4, 3), block_shape=(12,))
    >>> embedding(keras.ops.zeros([1, 4, 4, 3], "int32")).shape
    TensorShape([1, 48, 8])
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        image_shape,
        block_shape,
        num_classes=None,
        position_embedding=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.image_shape = tuple(image_shape)
        self.block_shape = tuple(block_shape)
        self.num_classes = num_classes
        self.position_embedding = position_embedding
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        channels = self.image_shape[2]
        self.channel_embedding = self._embedding(
            "channel_embedding", vocabulary_size * channels, hidden_dim
        )
        self.position_embeddings = []
        if position_embedding:
            depth = channels * hidden_dim
            initializer = keras.initializers.RandomNormal(stddev=depth**-0.5)
            self.position_embeddings = [
                self._embedding(name, max(self.image_shape), depth, initializer)
                for name in ("row_embedding", "column_embedding")
            ]
        self.class_embedding = None
        if num_classes is not None:
            self.class_embedding = self._embedding("class_embedding", num_classes, hidden_dim)

    def _embedding(self, name, count, depth, initializer=None):
        return keras.layers.Embedding(
            count,
            depth,
            embeddings_initializer=(initializer or self.kernel_initializer).clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        for layer in (self.channel_embedding, *self.position_embeddings, self.class_embedding):
            if layer is not None:
                layer.build((None,))
        self.built = True

    def call(self, inputs, labels=None):
        return self.embed(self.to_sequence(self.shift(inputs)), labels)

    def embed(self, before, labels=None, start=0):
        """Embeds consecutive positions.

        Args:
            before: int `[batch, length]`, the previous value of each position, 0 for the first.
            labels: int `[batch]`, for images with classes. Defaults to None.
            start: int or scalar tensor, the first position. Defaults to 0.

        Returns:
            `[batch, length, hidden_dim]`.
        """
        places = start + tf.range(size(before, 1))
        ids_of_all = self.to_sequence(np.indices(self.image_shape, dtype="int32"))
        row, column, channel = tf.unstack(tf.gather(ids_of_all, places, axis=1))
        x = self.channel_embedding(before + channel * self.vocabulary_size)
        x = x * self.hidden_dim**0.5
        if self.position_embeddings:
            row_embedding, column_embedding = self.position_embeddings
            embedded = row_embedding(row) + column_embedding(column)
            embedded *= (self.image_shape[2] * self.hidden_dim) ** 0.5
            embedded = tf.reshape(embedded, [-1, self.image_shape[2], self.hidden_dim])
            x += tf.gather(embedded, channel, batch_dims=1)
        if self.class_embedding is not None:
            x += self.class_embedding(labels)[:, None]
        return x

    def to_sequence(self, images):
        """Puts the values of images in the order of the blocks.

        Args:
            images: `[batch, height, width, channels]`.

        Returns:
            `[batch, height * width * channels]`.
        """
        shape = sides(self.image_shape, self.block_shape)
        return to_blocks(tf.reshape(images, [-1, *shape]), self.block_shape)

    def to_images(self, sequence):
        """The inverse of `to_sequence`."""
        return sequence_to_images(sequence, self.image_shape, self.block_shape)

    def shift(self, images):
        """Shifts images by one position in the order of the blocks, with 0 as the first value."""
        return self.to_images(tf.pad(self.to_sequence(images)[:, :-1], [[0, 0], [1, 0]]))

    def compute_output_spec(self, inputs, labels=None):
        length = self.image_shape[0] * self.image_shape[1] * self.image_shape[2]
        shape = (inputs.shape[0], length, self.hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    @property
    def arguments(self):
        """The arguments of the constructor for `get_config`, which a backbone also has."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "image_shape": self.image_shape,
            "block_shape": self.block_shape,
            "num_classes": self.num_classes,
            "position_embedding": self.position_embedding,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def get_config(self):
        return {**super().get_config(), **self.arguments}


def sides(image_shape, block_shape):
    """Returns the dimensions of an image that blocks divide.

    Args:
        image_shape: tuple of ints, `(height, width, channels)`.
        block_shape: tuple of one or two ints.

    Returns:
        Tuple of as many ints: the number of values, or the numbers of rows and of values per row.
    """
    height, width, channels = image_shape
    return (height * width * channels,) if len(block_shape) == 1 else (height, width * channels)


def sequence_to_images(sequence, image_shape, block_shape):
    """Converts sequences in the order of the blocks back to images.

    Args:
        sequence: `[batch, height * width * channels, ...]`.
        image_shape: tuple of ints, `(height, width, channels)`.
        block_shape: tuple of one or two ints.

    Returns:
        `[batch, height, width, channels, ...]`.
    """
    images = from_blocks(sequence, block_shape, sides(image_shape, block_shape))
    return tf.reshape(images, [-1, *image_shape, *sequence.shape[2:]])
