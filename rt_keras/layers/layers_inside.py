"""The layers of a class inside another layer or a model."""

from rt_keras.keras_internals import layers_of


def layers_inside(layer, kind):
    """Returns the outermost layers of a class inside a layer, or the layer itself.

    Args:
        layer: a `keras.layers.Layer`, such as a model.
        kind: class or tuple of classes; subclasses are included.

    Returns:
        A list, in the order of the layers. A layer that is used twice appears twice.

    >>> import keras
    >>> model = keras.Sequential([keras.layers.Dense(1), keras.layers.ReLU()])
    >>> [type(layer).__name__ for layer in layers_inside(model, keras.layers.Dense)]
    ['Dense']
    """
    if isinstance(layer, kind):
        return [layer]
    return [found for inner in layers_of(layer) for found in layers_inside(inner, kind)]
