import numpy as np
import pytest

from rt_keras.models.image.image_embedding import (
    RoutingTransformerImageEmbedding,
)

SHAPE = (4, 2, 3)
ORDERS = {"raster": (4,), "blocks": (2, 3)}
VALUES, CLASSES, WIDTH = 7, 5, 6


def make_layer(order="blocks", dtype="float64", **changes):
    """Weights are as random as those of a trained layer."""
    layer = RoutingTransformerImageEmbedding(
        VALUES, WIDTH, SHAPE, ORDERS[order], dtype=dtype, **changes
    )
    layer.build((None, *SHAPE))
    rng = np.random.default_rng(0)
    for weight in layer.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def random_images(batch=2):
    return np.random.default_rng(1).integers(0, VALUES, [batch, *SHAPE], dtype="int32")


def places_in(shape, block_shape):
    """The values of an image in their order, each as (row, column, channel)."""
    height, width, channels = shape
    if len(block_shape) == 1:
        return list(np.ndindex(shape))
    rows, columns = block_shape
    found = []
    for top in range(0, height, rows):
        for left in range(0, width * channels, columns):
            for row in range(top, top + rows):
                for column in range(left, left + columns):
                    found.append((row, column // channels, column % channels))
    return found


def reference(layer, images, order, labels=None):
    channels, places = SHAPE[2], places_in(SHAPE, ORDERS[order])
    table = np.asarray(layer.channel_embedding.embeddings)
    output = np.zeros([len(images), len(places), WIDTH])
    for i, image in enumerate(images):
        before = 0
        for t, (row, column, channel) in enumerate(places):
            x = np.sqrt(WIDTH) * table[channel * VALUES + before]
            for layer_of, number in zip(layer.position_embeddings, (row, column)):
                # The embedding of a pixel has one part for each channel.
                parts = np.asarray(layer_of.embeddings)[number].reshape(channels, WIDTH)
                x = x + np.sqrt(channels * WIDTH) * parts[channel]
            if labels is not None:
                x = x + np.asarray(layer.class_embedding.embeddings)[labels[i]]
            output[i, t] = x
            before = image[row, column, channel]
    return output


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("classes, positions", [(CLASSES, True), (None, False)])
def test_values(order, classes, positions):
    layer = make_layer(order, num_classes=classes, position_embedding=positions)
    images, labels = random_images(), None if classes is None else np.array([4, 1])
    output = layer(images, labels=labels)
    assert output.shape == (2, 24, WIDTH)
    np.testing.assert_allclose(output, reference(layer, images, order, labels), rtol=0, atol=1e-10)
