"""Base class of layers whose outputs have the shape of their inputs."""

import keras

from rt_keras.layers.saved_arguments import saved_dtype


class SameShape(keras.layers.Layer):
    """Base class of layers whose outputs have the shape and the mask of their inputs.

    Args:
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "dtype": saved_dtype(self)}
