"""Dropout of entire tokens."""

import keras
import tensorflow as tf

from rt_keras.layers.dropout import draw_seed
from rt_keras.layers.same_shape import SameShape


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenDropout(SameShape):
    """Randomly replaces token ids with 0 in training.

    ```
    output_t = 0 with probability rate, else token_t
    ```

    Args:
        rate: float, probability in [0, 1).
        seed: int or None, seed of the random numbers. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: int `[batch, length]`.
        training: bool, whether to replace tokens.

    Returns:
        `[batch, length]`, with the dtype of the inputs.

    Raises:
        ValueError: if `rate` is out of range.

    Source: the code of Roy et al. 2021, which uses it for the WikiText-103 models.

    >>> TokenDropout(0.5)(keras.ops.ones([1, 3], dtype="int32")).numpy().tolist()
    [[1, 1, 1]]
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1). Received: rate={rate}")
        self.rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, training=None):
        if not training or not self.rate:
            return inputs
        seed = draw_seed(self.seed_generator)
        stays = tf.random.stateless_uniform(tf.shape(inputs), seed) >= self.rate
        return keras.ops.where(stays, inputs, keras.ops.zeros_like(inputs))

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
