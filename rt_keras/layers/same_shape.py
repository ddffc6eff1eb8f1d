"""The base class of layers that change what their inputs hold, and not their shape."""

import keras

from rt_keras.layers.saved_arguments import saved_arguments


class SameShape(keras.layers.Layer):
    """A layer whose outputs have the shape and the mask of its inputs.

    Its config is read off its constructor, so a subclass keeps its arguments as attributes of
    their names.

    Args:
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def add_statistic(self, name, size):
        """Adds float32 `[size]`, the attribute `name`, which calls write and callbacks read."""
        fixed = {"dtype": "float32", "trainable": False, "autocast": False}
        setattr(self, name, self.add_weight(name=name, shape=[size], initializer="zeros", **fixed))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **saved_arguments(self)}
