"""Heads of Gated DeltaNet, which read a state of fixed size instead of keys."""

import math

import keras
import tensorflow as tf

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.attention_inputs import AttentionInputs
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.caches import like
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.gated_delta import gated_delta_rule, gated_delta_step

# The constants of the authors' code.
NORM_EPSILON, UNIT_EPSILON = 1e-5, 1e-6
VECTORS = ("query", "key", "value")
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

    abilities = Abilities(
        bidirectional=False,
        strictly_causal=True,
        cached=True,
        chunks=True,
        documents=True,
        weighted=False,
        rotated=False,
    )

    def __init__(self, num_heads, block_size=64, kernel_size=4, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.kernel_size = positive_int("kernel_size", kernel_size)

    def num_gates(self, value_depth):
        # The decay, beta, and one gate for each number of the output.
        return 2 + value_depth

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.query_kernel = self.key_kernel = self.value_kernel = None
        if self.kernel_size > 1:
            self.query_kernel = self._add_kernel("query_kernel", query_shape[-1])
            self.key_kernel = self._add_kernel("key_kernel", query_shape[-1])
            self.value_kernel = self._add_kernel("value_kernel", self.value_depth)
        # They are used in at least float32.
        heads = (self.num_heads,)
        self.a_log = self.add_weight(heads, _log_of_rates, name="a_log", autocast=False)
        self.dt_bias = self.add_weight(heads, _bias_of_steps, name="dt_bias", autocast=False)
        self.output_scale = self.add_weight(
            name="output_scale", shape=(self.value_depth,), initializer="ones", autocast=False
        )

    def _add_kernel(self, name, depth):
        bound = self.kernel_size**-0.5
        initializer = keras.initializers.RandomUniform(-bound, bound)
        return self.add_weight((self.num_heads, self.kernel_size, depth), initializer, name=name)

    def attend(self, inputs, return_logsumexp=False):
        output = gated_delta_rule(
            **self._arguments(inputs),
            block_size=self.block_size,
            query_mask=inputs.query_mask,
            key_mask=inputs.key_mask,
            documents=inputs.documents,
        )
        return self._gate(output, inputs.gates)

    def prefill(self, query, value, key, count, max_length, gates=None):
        inputs = AttentionInputs(query, key, value, gates=gates, count=count)
        output, state = gated_delta_rule(
            **self._arguments(inputs),
            block_size=self.block_size,
            key_mask=tf.range(size(query, 2))[None] < count,
            return_state=True,
        )
        return self._gate(output, gates), {"state": state, **self._last_vectors(inputs)}

    def prefill_cache(self, inputs, max_length):
        _, cache = self.prefill(
            inputs.query, inputs.value, inputs.key, inputs.count, max_length, inputs.gates
        )
        return cache

    def attend_step(self, inputs, cache, return_logsumexp=False):
        output, state = gated_delta_step(
            **self._arguments(inputs, cache), state=cache["state"], count=inputs.count
        )
        return self._gate(output, inputs.gates), self._after(cache, state, inputs)

    def attend_chunk(self, inputs, cache, return_logsumexp=False):
        length, count = size(inputs.query, 2), inputs.count
        output, state = gated_delta_rule(
            **self._arguments(inputs, cache),
            block_size=self.block_size,
            key_mask=None if count is None else tf.range(length) < count[:, None],
            initial_state=cache["state"],
            return_state=True,
        )
        return self._gate(output, inputs.gates), self._after(cache, state, inputs)

    def _arguments(self, inputs, cache=None):
        """Returns the queries, keys, values, decays and betas of the rule, as keyword arguments."""
        if inputs.gates is None:
            raise ValueError(
                f"{self.kind} need gates, which MultiHeadAttention computes from its input"
            )
        query, key, value = (
            tf.nn.silu(self._convolve(x, kernel, mask, last, inputs.documents))
            for x, kernel, mask, last in zip(
                (inputs.query, inputs.key, inputs.value),
                (self.query_kernel, self.key_kernel, self.value_kernel),
                (inputs.query_mask, inputs.key_mask, inputs.key_mask),
                [(cache or {}).get(name) for name in VECTORS],
                strict=True,
            )
        )
        dtype = accumulation_dtype(inputs.gates.dtype)
        query, key = (_unit(tf.cast(x, dtype)) for x in (query, key))
        decay, beta = (tf.cast(inputs.gates[..., i], dtype) for i in range(2))
        a_log, dt_bias = (tf.cast(x, dtype)[:, None] for x in (self.a_log, self.dt_bias))
        return {
            "query": query * query.shape[-1] ** -0.5,
            "key": key,
            "value": value,
            "log_decay": -tf.exp(a_log) * tf.nn.softplus(decay + dt_bias),
            "beta": tf.sigmoid(beta),
        }

    def _convolve(self, x, kernel, mask, before, documents):
        x, before = (repeat_heads(y, self.num_heads) for y in (x, before))
        if kernel is None:
            return x
        kernel = tf.convert_to_tensor(kernel)
        return causal_convolution(x, kernel, mask=mask, before=before, documents=documents)

    def _gate(self, output, gates):
        """Normalizes the outputs of the rule, and multiplies them by the output gates."""
        dtype = accumulation_dtype(output.dtype)
        x, gates = tf.cast(output, dtype), tf.cast(gates[..., 2:], dtype)
        x *= tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + NORM_EPSILON)
        x *= tf.cast(self.output_scale, dtype) * tf.nn.silu(gates)
        return tf.cast(x, output.dtype)

    def _after(self, cache, state, inputs):
        """Returns the cache with the new state and the last vectors."""
        return like({"state": state, **self._last_vectors(inputs, cache)}, cache)

    def _last_vectors(self, inputs, cache=None):
        """Returns the queries, keys and values that the next convolutions need."""
        if self.kernel_size == 1:
            return {}
        count = size(inputs.query, 2) if inputs.count is None else inputs.count
        vectors = zip(VECTORS, (inputs.query, inputs.key, inputs.value), strict=True)
        return {
            name: last_vectors(x, count, self.kernel_size - 1, before=(cache or {}).get(name))
            for name, x in vectors
        }

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "kernel_size": self.kernel_size,
        }


def _unit(x):
    return x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True) + UNIT_EPSILON)


def _log_of_rates(shape, dtype=None):
    return keras.ops.log(keras.initializers.RandomUniform(*DECAY_RATES)(shape, dtype))


def _bias_of_steps(shape, dtype=None):
    """Draws step sizes, evenly on a logarithmic scale, and returns the inverse of softplus."""
    low, high = map(math.log, STEP_SIZES)
    step = keras.ops.exp(keras.initializers.RandomUniform(low, high)(shape, dtype))
    return step + keras.ops.log(-keras.ops.expm1(-step))
