"""Token shift: half of the features come from the previous position."""

import keras
import tensorflow as tf

from rt_keras.layers.same_shape import SameShape
from rt_keras.ops.documents import positions_in_documents


@keras.saving.register_keras_serializable(package="rt_keras")
class TokenShift(SameShape):
    """Takes the second half of the features from the previous position.

    ```
    output_t = [x_t[: width / 2], x_(t-1)[width / 2 :]],    x_(-1) = 0
    ```

    The layer has no weights. It gives keys of the first block information about the previous token,
    which a model needs to continue repetitions.

    Args:
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        mask: bool `[batch, length]`, False for padding, whose features are shifted as 0. Keras sets
            it to the mask of `inputs`.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, whose first
            positions follow zeros; or None.

    Returns:
        `[batch, length, width]`.

    Source: the token shift of the RWKV language model (Peng et al. 2023, RWKV, section 3.1.1), with
    fixed halves instead of learned fractions.

    >>> TokenShift()(keras.ops.reshape(keras.ops.arange(6.0), [1, 3, 2])).numpy().tolist()
    [[[0.0, 0.0], [2.0, 1.0], [4.0, 3.0]]]
    """

    def call(self, inputs, mask=None, documents=None):
        half = inputs.shape[-1] // 2
        before = inputs[..., half:]
        if mask is not None:
            before = tf.where(tf.cast(mask, tf.bool)[..., None], before, tf.zeros_like(before))
        # Padding precedes slicing, since the sequence may be empty.
        before = tf.pad(before, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        if documents is not None:
            begins = positions_in_documents(documents)[..., None] == 0
            before = tf.where(begins, tf.zeros_like(before), before)
        return tf.concat([inputs[..., :half], before], axis=-1)

    def make_cache(self, inputs, count):
        """Returns the features that the position after the first `count` takes from the last one.

        Args:
            inputs: `[batch, length, width]`.
            count: int scalar.

        Returns:
            `[batch, width - width // 2]`, zeros if `count` is 0.
        """
        half = inputs.shape[-1] // 2
        before = tf.pad(inputs[..., half:], [[0, 0], [1, 0], [0, 0]])
        return tf.gather(before, count, axis=1)

    def call_with_cache(self, inputs, cache, count=None):
        """Computes the output of the next positions and the cache for later ones.

        Args:
            inputs: `[batch, length, width]`.
            cache: the cache of `make_cache` or of the previous call.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them. None for all. Defaults to None.

        Returns:
            `[batch, length, width]`, and `[batch, width - width // 2]`.
        """
        half = inputs.shape[-1] // 2
        before = tf.concat([cache[:, None], inputs[..., half:]], axis=1)
        last = before[:, -1] if count is None else tf.gather(before, count, axis=1, batch_dims=1)
        return tf.concat([inputs[..., :half], before[:, :-1]], axis=-1), last
