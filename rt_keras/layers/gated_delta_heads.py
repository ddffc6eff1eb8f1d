"""Heads of Gated DeltaNet, which read a state of fixed size instead of keys."""

import math

import keras
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.caches import like
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.gated_delta import gated_delta_rule, gated_delta_step

# The constants of the authors' code.
NORM_EPSILON, UNIT_EPSILON = 1e-5, 1e-6
DECAY_RATES, STEP_SIZES = (1e-4, 16.0), (1e-3, 0.1)


@keras.saving.register_keras_serializable(package="rt_keras")
class GatedDeltaHeads(HeadGroup):
    """Heads of Gated DeltaNet: a recurrence that writes keys and values into a matrix.

    With x the input of the layer, and q, k, v the queries, keys and values of the head,

    ```
    q', k', v' = SiLU(convolution(q)), SiLU(convolution(k)), SiLU(convolution(v))
    query, key = q' / (|q'| sqrt(depth)), k' / |k'|
    log_decay = -exp(a_log) softplus(W_a x + dt_bias)
    beta = sigmoid(W_b x)
    output = RMSNorm(gated_delta_rule(query, key, v', log_decay, beta)) * SiLU(W_g x)
    ```

    See `rt_keras.ops.gated_delta_rule`. The convolutions are causal and depthwise. A dense layer of
    `MultiHeadAttention` computes W_a x, W_b x and W_g x, the gates, from its queries. The heads are
    a recurrent network without attention weights: `dropout` of the weights has no effect on them.
    They need no positions, so a `rotary_embedding` does not rotate their queries and keys. The cost
    is O(n · (block_size + depth) · depth). The cache is the state and the last vectors that the
    convolutions need; it does not grow.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, positions that are computed at once. It only affects speed. Defaults to 64.
        kernel_size: int, number of positions in a convolution, 1 for no convolutions. Defaults to
            4.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        query_kernel, key_kernel: `[heads, kernel_size, depth]`.
        value_kernel: `[heads, kernel_size, value_depth]`.
        a_log, dt_bias: `[heads]`.
        output_scale: `[value_depth]`, of the RMSNorm, shared by all heads.

    Raises:
        ValueError: if a size is not a positive integer, `max_relative_distance` is given, or the
            heads are called without `use_causal_mask` or without gates.

    Source: Yang et al. 2024, Gated Delta Networks: Improving Mamba2 with Delta Rule, section 3.

    >>> from rt_keras.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention([GatedDeltaHeads(2)])
    >>> x = keras.random.normal([1, 10, 8])
    >>> layer(x, x, use_causal_mask=True).shape
    TensorShape([1, 10, 8])
    """

    strictly_causal = True
    needs_causal_mask = True
    takes_relative_positions = False
    takes_rotary_embedding = False
    cached_decoding = True
    reads_chunks = True
    separates_documents = True
    returns_attention_scores = False

    def __init__(self, num_heads, block_size=64, kernel_size=4, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.kernel_size = positive_int("kernel_size", kernel_size)

    def num_gates(self, value_depth):
        # The decay, beta, and one gate for each number of the output.
        return 2 + value_depth

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        depths = {"query": query_shape[-1], "key": query_shape[-1], "value": self.value_depth}
        if self.kernel_size > 1:
            bound = self.kernel_size**-0.5
            for name, depth in depths.items():
                initializer = keras.initializers.RandomUniform(-bound, bound)
                shape = self.kernel_size, depth
                self.add_head_weight(f"{name}_kernel", *shape, initializer=initializer)
        # They are used in at least float32.
        self.add_head_weight("a_log", initializer=_log_of_rates, autocast=False)
        self.add_head_weight("dt_bias", initializer=_bias_of_steps, autocast=False)
        self.output_scale = self.add_weight(
            name="output_scale", shape=(self.value_depth,), initializer="ones", autocast=False
        )

    def attend(
        self,
        *,
        causal,
        dropout,
        seed,
        query_mask,
        key_mask,
        gates=None,
        documents=None,
        **vectors,
    ):
        masks = {"query": query_mask, "key": key_mask, "value": key_mask}
        output = gated_delta_rule(
            **self._arguments(vectors, gates, masks, documents=documents),
            block_size=self.block_size,
            query_mask=query_mask,
            key_mask=key_mask,
            documents=documents,
        )
        return self._gated(output, gates)

    def prefill(self, query, value, key, count, max_length, gates=None):
        vectors = {"query": query, "key": key, "value": value}
        output, state = gated_delta_rule(
            **self._arguments(vectors, gates),
            block_size=self.block_size,
            key_mask=tf.range(size(query, 2))[None] < count,
            return_state=True,
        )
        last = {name: last_vectors(x, count, self.kernel_size - 1) for name, x in vectors.items()}
        cache = {"state": state, **(last if self.kernel_size > 1 else {})}
        return self._gated(output, gates), cache

    def prefill_cache(self, **inputs):
        return self.prefill(**inputs)[1]

    def decode_step(self, *, cache, position, count=None, gates=None, **vectors):
        arguments = self._arguments(vectors, gates, cache=cache)
        output, state = gated_delta_step(**arguments, state=cache["state"], count=count)
        return self._gated(output, gates), self._after(cache, state, vectors, count)

    def read_chunk(
        self, *, cache, position, count=None, dropout=0.0, seed=None, gates=None, **vectors
    ):
        is_real = None if count is None else tf.range(size(vectors["query"], 2)) < count[:, None]
        output, state = gated_delta_rule(
            **self._arguments(vectors, gates, cache=cache),
            block_size=self.block_size,
            key_mask=is_real,
            initial_state=cache["state"],
            return_state=True,
        )
        return self._gated(output, gates), self._after(cache, state, vectors, count)

    def _arguments(self, vectors, gates, masks=None, cache=None, documents=None):
        """Returns the arguments of the rule.

        Args:
            vectors: dictionary of "query", "key" and "value", `[batch, heads, length, ...]`.
            gates: `[batch, heads, length, 2 + value_depth]`.
            masks: dictionary of their masks `[batch, length]` or None. Defaults to None, for no
                masks.
            cache: the cache of the previous positions; None for the first ones. Defaults to None.
            documents: int `[batch, length]`, documents in a row; or None. Defaults to None.

        Returns:
            A dictionary.
        """
        if gates is None:
            raise ValueError(
                f"{self._described()} need gates, which MultiHeadAttention computes from its input"
            )
        dtype, masks = accumulation_dtype(gates.dtype), masks or {}
        found = {
            name: tf.nn.silu(
                self._convolved(name, x, masks.get(name), (cache or {}).get(name), documents)
            )
            for name, x in vectors.items()
        }
        query, key = (_unit(tf.cast(found[name], dtype)) for name in ("query", "key"))
        decay, beta = (tf.cast(gates[..., i], dtype) for i in range(2))
        a_log, dt_bias = (tf.cast(x, dtype)[:, None] for x in (self.a_log, self.dt_bias))
        return {
            "query": query * query.shape[-1] ** -0.5,
            "key": key,
            "value": found["value"],
            "log_decay": -tf.exp(a_log) * tf.nn.softplus(decay + dt_bias),
            "beta": tf.sigmoid(beta),
        }

    def _convolved(self, name, x, mask, before, documents):
        x, before = (repeat_heads(y, self.num_heads) for y in (x, before))
        if self.kernel_size == 1:
            return x
        kernel = tf.convert_to_tensor(getattr(self, f"{name}_kernel"))
        return causal_convolution(x, kernel, mask=mask, before=before, documents=documents)

    def _gated(self, output, gates):
        """Normalizes the outputs of the rule, and multiplies them by the output gates."""
        dtype = accumulation_dtype(output.dtype)
        x, gates = tf.cast(output, dtype), tf.cast(gates[..., 2:], dtype)
        x *= tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + NORM_EPSILON)
        x *= tf.cast(self.output_scale, dtype) * tf.nn.silu(gates)
        return tf.cast(x, output.dtype)

    def _after(self, cache, state, vectors, count):
        """Returns the cache with the new state and the last vectors."""
        count, after = size(vectors["query"], 2) if count is None else count, {"state": state}
        for name, x in vectors.items():
            if name in cache:
                after[name] = last_vectors(x, count, self.kernel_size - 1, before=cache[name])
        return like(after, cache)


def _unit(x):
    return x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True) + UNIT_EPSILON)


def _log_of_rates(shape, dtype=None):
    return keras.ops.log(keras.initializers.RandomUniform(*DECAY_RATES)(shape, dtype))


def _bias_of_steps(shape, dtype=None):
    """Draws step sizes, evenly on a logarithmic scale, and returns the inverse of softplus."""
    low, high = map(math.log, STEP_SIZES)
    step = keras.ops.exp(keras.initializers.RandomUniform(low, high)(shape, dtype))
    return step + keras.ops.log(-keras.ops.expm1(-step))
