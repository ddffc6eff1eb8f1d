"""A gated PixelCNN of Keras's own layers, to compare with."""

import keras
from keras import layers

from rt_keras.training.tasks.image_lm import PIXEL_VALUES

# Sides of the convolutions: of the first one and of the others.
FIRST, OTHERS = 7, 5
BLOCKS = 4


def pixel_cnn(image_shape, weights):
    """Builds a gated PixelCNN with at most as many weights as another model.

    Channels lie side by side, so that each value sees all values before it in raster order.

    Args:
        image_shape: tuple of ints, `(height, width, channels)`.
        weights: int, the number of weights to approach from below.

    Returns:
        A model from {"images": int `[batch, *image_shape]`} to logits
        `[batch, *image_shape, 256]`.

    Source: van den Oord et al. 2016, Conditional Image Generation with PixelCNN Decoders, section
    2: a vertical and a horizontal stack, gated; here with 4 blocks.

    >>> model = pixel_cnn((4, 4, 1), weights=60_000)
    >>> 55_000 < model.count_params() <= 60_000
    True
    """
    least, most = 1, 2
    while _build(image_shape, most).count_params() < weights:
        least, most = most, 2 * most
    while most - least > 1:
        filters = (least + most) // 2
        fits = _build(image_shape, filters).count_params() <= weights
        least, most = (filters, most) if fits else (least, filters)
    return _build(image_shape, least)


def _build(image_shape, filters):
    height, width, channels = image_shape
    images = keras.Input(image_shape, dtype="int32", name="images")
    x = layers.Reshape([height, width * channels, 1])(images)
    x = layers.Rescaling(1 / 127.5, offset=-1.0)(x)
    vertical, horizontal = _down(_above(x, filters, FIRST)), _right(_before(x, filters, FIRST))
    horizontal = layers.Add()([horizontal, layers.Conv2D(filters, 1)(vertical)])
    for _ in range(BLOCKS):
        vertical, horizontal = _block(vertical, horizontal, filters)
    x = layers.Conv2D(2 * filters, 1, activation="relu")(layers.ReLU()(horizontal))
    logits = layers.Conv2D(PIXEL_VALUES, 1)(x)
    return keras.Model({"images": images}, layers.Reshape([*image_shape, PIXEL_VALUES])(logits))


def _block(vertical, horizontal, filters):
    """Returns the vertical and the horizontal stack after a gated block."""
    above = _above(vertical, 2 * filters, OTHERS)
    before = _before(horizontal, 2 * filters, OTHERS)
    before = layers.Add()([before, layers.Conv2D(2 * filters, 1)(above)])
    return _gate(above), layers.Add()([horizontal, layers.Conv2D(filters, 1)(_gate(before))])


def _gate(x):
    value, gate = keras.ops.split(x, 2, axis=-1)
    return layers.Multiply()([keras.ops.tanh(value), keras.ops.sigmoid(gate)])


def _above(x, filters, size):
    """Convolves the rows up to a position's own."""
    x = layers.ZeroPadding2D(((size // 2, 0), (size // 2, size // 2)))(x)
    return layers.Conv2D(filters, (size // 2 + 1, size))(x)


def _before(x, filters, size):
    """Convolves the values of a row up to a position's own."""
    x = layers.ZeroPadding2D(((0, 0), (size // 2, 0)))(x)
    return layers.Conv2D(filters, (1, size // 2 + 1))(x)


def _down(x):
    """Shifts rows by one, so that a position has those above it."""
    return layers.Cropping2D(((0, 1), (0, 0)))(layers.ZeroPadding2D(((1, 0), (0, 0)))(x))


def _right(x):
    """Shifts the values of a row by one, so that a position has those before it."""
    return layers.Cropping2D(((0, 0), (0, 1)))(layers.ZeroPadding2D(((0, 0), (1, 0)))(x))
