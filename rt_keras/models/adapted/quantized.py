"""Adapted tasks in int8."""

import gc

from rt_keras.keras_internals import layers_of


class Quantized:
    """What adapted tasks add to Keras's `quantize`: it takes seconds, of new models too."""

    def quantize(self, *args, **kwargs):
        """See `keras.Model.quantize`."""
        if self.preprocessor is not None:
            # Keras refuses what has not been called yet.
            _build(self.preprocessor)
        # Keras collects garbage for each weight, and searches all that there is for it.
        gc.freeze()
        try:
            super().quantize(*args, **kwargs)
        finally:
            gc.unfreeze()


def _build(layer):
    """Builds a layer that needs no shape, and the layers in it."""
    if not layer.built:
        layer.build(None)
    for inner in layers_of(layer):
        _build(inner)
