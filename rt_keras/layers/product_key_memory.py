"""A large table of values, of which each position retrieves those with the best keys."""

import math

import keras
import tensorflow as tf

from rt_keras.layers.head_options import positive_int
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.same_shape import SameShape
from rt_keras.ops.blocks import ceil_div, pad_axis, size
from rt_keras.ops.chunks import map_chunks

# Maximum number of elements of values that are gathered at once.
GATHERED_AT_ONCE = 2**24


@keras.saving.register_keras_serializable(package="rt_keras")
class ProductKeyMemory(SameShape):
    """A table of num_keys² values, which replaces a feed-forward network.

    Each head computes a query in two halves and compares each half with `num_keys` separate keys.
    The key of the value i · num_keys + j is the pair of the keys i and j, so the best values are
    among the pairs of the best keys of each half:

    ```
    q, r = LN(x W + b) in two halves
    score_(i, j) = q · key_i + r · other_key_j
    output = sum over heads, sum over the best (i, j) of softmax(score)_(i, j) value_(i, j)
    ```

    A table of a million values thus costs only two thousand comparisons. The paper normalizes
    queries over the batch. Here each query is normalized separately, since batch statistics would
    depend on later positions.

    Args:
        num_keys: int, number of keys per half.
        num_heads: int, number of queries per position. Defaults to 4.
        top_k: int or None, number of values per query, at most `num_keys`. None for the minimum of
            32 and `num_keys`. Defaults to None.
        key_dim: int, depth of a query, an even number. Defaults to 128.
        kernel_initializer: initializer of the dense layer of the queries. Defaults to
            "glorot_uniform".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        mask: bool `[batch, length]`, False for padding, which does not count for `value_use`; or
            None.
        training: bool, whether to update `value_use`.

    Returns:
        `[batch, length, width]`.

    Attributes:
        value_use: weight `[2]` of the last training step: the fraction of values that were used,
            and the effective fraction exp(entropy) / num_keys², which would result from evenly used
            values.

    Raises:
        ValueError: if a number is out of range.

    Source: Lample et al. 2019, Large Memory Layers with Product Keys, section 3.

    >>> layer = ProductKeyMemory(num_keys=16, top_k=4, key_dim=8)
    >>> layer(keras.random.normal([2, 5, 32])).shape
    TensorShape([2, 5, 32])
    """

    def __init__(
        self,
        num_keys,
        num_heads=4,
        top_k=None,
        key_dim=128,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_keys = positive_int("num_keys", num_keys)
        self.num_heads = positive_int("num_heads", num_heads)
        self.top_k = positive_int("top_k", min(32, num_keys) if top_k is None else top_k)
        if self.top_k > num_keys:
            raise ValueError(f"top_k must be at most num_keys, {num_keys}. Received: top_k={top_k}")
        if positive_int("key_dim", key_dim) % 2:
            raise ValueError(f"key_dim must be an even number. Received: key_dim={key_dim}")
        self.key_dim = key_dim
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.query_dense = keras.layers.Dense(
            num_heads * key_dim,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="query",
        )
        self.query_norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=self.dtype_policy, name="query_norm"
        )

    def build(self, input_shape):
        self.query_dense.build(input_shape)
        self.query_norm.build((*input_shape[:-1], self.num_heads, self.key_dim))
        half = self.key_dim // 2
        self.keys = self.add_weight(
            name="keys",
            shape=(2, self.num_heads, self.num_keys, half),
            initializer=keras.initializers.RandomUniform(-(half**-0.5), half**-0.5),
        )
        width = input_shape[-1]
        self.values = self.add_weight(
            name="values",
            shape=(self.num_keys**2, width),
            initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        )
        self.add_statistic("value_use", 2)
        self.built = True

    def call(self, inputs, mask=None, training=None):
        batch, length, width = size(inputs, 0), size(inputs, 1), inputs.shape[2]
        x = tf.reshape(inputs, [batch * length, width])
        weights, places = self._best(x)
        if training:
            self._note_use(weights, places, mask)
        output = self._weighted_sums(tf.cast(weights, x.dtype), places)
        return tf.reshape(output, [batch, length, width])

    def _best(self, x):
        """Returns weights and indices of each position's values, `[positions, heads, top_k]`.

        Scores are at least float32, since rounding changes choices.
        """
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        count, half = size(x, 0), self.key_dim // 2
        query = tf.reshape(self.query_dense(x), [count, self.num_heads, self.key_dim])
        query = tf.reshape(self.query_norm(query), [count, self.num_heads, 2, half])
        scores = tf.einsum(
            "nhtd,thkd->nhtk",
            tf.cast(query, dtype),
            tf.cast(tf.convert_to_tensor(self.keys), dtype),
        )
        scores, keys = tf.math.top_k(scores, self.top_k)
        # For each pair of the best keys.
        shape = [count, self.num_heads, self.top_k**2]
        scores = tf.reshape(scores[:, :, 0, :, None] + scores[:, :, 1, None], shape)
        places = tf.reshape(keys[:, :, 0, :, None] * self.num_keys + keys[:, :, 1, None], shape)
        scores, pairs = tf.math.top_k(scores, self.top_k)
        return tf.nn.softmax(scores), tf.gather(places, pairs, batch_dims=2)

    def _weighted_sums(self, weights, places):
        """Computes the sums of the values, `[positions, width]`, in chunks of positions."""
        count, each = size(weights, 0), self.num_heads * self.top_k
        values = tf.cast(tf.convert_to_tensor(self.values), weights.dtype)
        weights, places = (tf.reshape(x, [count, each]) for x in (weights, places))

        def sums(part, whole):
            found = tf.gather(whole["values"], part["places"])
            return tf.einsum("nk,nkw->nw", part["weights"], found)

        numbers = count * each * values.shape[1] if isinstance(count, int) else 0
        chunks = max(1, ceil_div(numbers, GATHERED_AT_ONCE))
        if chunks == 1:
            return sums({"weights": weights, "places": places}, {"values": values})
        at_once = ceil_div(count, chunks)
        parts = {
            name: tf.reshape(pad_axis(x, 0, 0, chunks * at_once - count), [chunks, at_once, each])
            for name, x in (("weights", weights), ("places", places))
        }
        found = map_chunks(sums, parts, {"values": values}, weights.dtype)
        return tf.reshape(found, [chunks * at_once, -1])[:count]

    def _note_use(self, weights, places, mask):
        weights = tf.cast(tf.stop_gradient(weights), tf.float32)
        if mask is not None:
            weights *= tf.cast(tf.reshape(mask, [-1, 1, 1]), tf.float32)
        values = self.num_keys**2
        total = tf.math.unsorted_segment_sum(
            tf.reshape(weights, [-1]), tf.reshape(places, [-1]), values
        )
        shares = total / tf.maximum(tf.reduce_sum(total), 1e-9)
        entropy = -tf.reduce_sum(tf.math.xlogy(shares, shares))
        used = tf.reduce_mean(tf.cast(shares > 0, tf.float32))
        self.value_use.assign(tf.stack([used, tf.exp(entropy - math.log(values))]))


def memory_use(model):
    """Returns the use of a model's memories in the last training step.

    Args:
        model: a Keras model.

    Returns:
        For the i-th `ProductKeyMemory` of the model, `memory_i_used`, the fraction of its values
        that were used, and `memory_i_even`, the effective fraction, which would result from evenly
        used values.
    """
    found = {}
    for i, layer in enumerate(layers_inside(model, ProductKeyMemory)):
        used, even = layer.value_use.numpy().tolist()
        found |= {f"memory_{i}_used": used, f"memory_{i}_even": even}
    return found
