"""A short causal convolution over the positions, with a residual."""

import tensorflow as tf

from rt_keras.layers.head_options import positive_int
from rt_keras.layers.same_shape import SameShape
from rt_keras.ops.blocks import size
from rt_keras.ops.convolution import causal_convolution, last_vectors


class ShortConvolution(SameShape):
    """Adds to each vector a weighted sum of the last few vectors, separately in each feature.

    ```
    output_i = input_i + sum_(s < kernel_size) kernel_s ⊙ input_(i - s)
    ```

    Args:
        kernel_size: int, number of positions in the sum, up to its own; at least 2.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, features]`.
        mask: bool `[batch, length]`, False for padding, which counts as 0 in the sum. Keras sets it
            to the mask of `inputs`.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, whose sums
            have no vectors of other documents; or None.

    Returns:
        `[batch, length, features]`.

    Raises:
        ValueError: if `kernel_size` is not an integer of at least 2.

    Source: So et al. 2021, Primer, for queries, keys and values; the residual: Allen-Zhu 2025,
    Physics of Language Models, Part 4.1, Canon layers.

    >>> layer = ShortConvolution(2)
    >>> layer.build([1, 3, 1])
    >>> layer.set_weights([tf.reshape([0.0, 0.5], [2, 1])])
    >>> layer(tf.reshape([1.0, 2.0, 3.0], [1, 3, 1])).numpy().ravel().tolist()
    [1.0, 2.5, 4.0]
    """

    def __init__(self, kernel_size, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = positive_int("kernel_size", kernel_size, least=2)

    def build(self, input_shape):
        # With zeros, training starts from the same model as without convolutions. The kernel still
        # gets gradients, as the products with its inputs are summed with them. Noise, which
        # `Cluster` uses, would change which vectors are similar from the first step.
        shape = (self.kernel_size, input_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer="zeros")
        self.built = True

    def call(self, inputs, mask=None, documents=None):
        return inputs + self._sums(inputs, mask=mask, documents=documents)

    def _sums(self, inputs, before=None, **options):
        before = None if before is None else before[:, None]
        kernel = tf.convert_to_tensor(self.kernel)[None]
        return causal_convolution(inputs[:, None], kernel, before=before, **options)[:, 0]

    def new_cache(self, batch):
        """Returns the cache before the first position.

        Args:
            batch: int or int scalar, number of rows.

        Returns:
            `[batch, kernel_size - 1, features]`, zeros.
        """
        return tf.zeros([batch, self.kernel_size - 1, self.kernel.shape[1]], self.compute_dtype)

    def make_cache(self, inputs, count):
        """Returns the last of the first `count` vectors, which the sums of later ones contain.

        Args:
            inputs: `[batch, length, features]`.
            count: int scalar.

        Returns:
            `[batch, kernel_size - 1, features]`, after zeros if there are fewer.
        """
        return last_vectors(inputs[:, None], count, self.kernel_size - 1)[:, 0]

    def call_with_cache(self, inputs, cache, count=None):
        """Computes the output of the next positions and the cache for later ones.

        Args:
            inputs: `[batch, length, features]`.
            cache: the cache of `new_cache`, `make_cache` or the previous call.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them. None for all. Defaults to None.

        Returns:
            `[batch, length, features]`, and `[batch, kernel_size - 1, features]`.
        """
        output = inputs + self._sums(inputs, before=cache)
        count = size(inputs, 1) if count is None else count
        last = last_vectors(inputs[:, None], count, self.kernel_size - 1, before=cache[:, None])
        return output, last[:, 0]

    def get_config(self):
        return {**super().get_config(), "kernel_size": self.kernel_size}
