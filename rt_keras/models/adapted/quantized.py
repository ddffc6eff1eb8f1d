"""Quantization of adapted tasks to int8."""

import gc

from rt_keras.keras_internals import layers_of


class Quantized:
    """Mixin of adapted tasks: quantizes in seconds, and also models that were never called."""

    def quantize(self, *args, **kwargs):
        """See `keras.Model.quantize`."""
        if self.preprocessor is not None:
            # Keras refuses layers that have not been called.
            _build(self.preprocessor)
        # Keras collects garbage for each weight, which searches all objects in memory.
        gc.freeze()
        try:
            super().quantize(*args, **kwargs)
        finally:
            gc.unfreeze()


def _build(layer):
    """Builds a layer that needs no input shape, and the layers inside it."""
    if not layer.built:
        layer.build(None)
    for inner in layers_of(layer):
        _build(inner)
