"""Sampling for a batch of requests with individual parameters and seeds."""

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.models.generation import int32_seed


class RequestSampler(keras_hub.samplers.Sampler):
    """Sampler that draws each row as KerasHub's samplers do for its prompt alone.

    Each row equals the output of `model.generate` for its prompt alone with a new

    - `RandomSampler(temperature=temperature, seed=seed)` if `top_p` is 1 and `top_k` is 0,
    - `TopKSampler(k=top_k, ...)` if only `top_p` is 1,
    - `TopPSampler(p=top_p, k=top_k or None, ...)` otherwise.

    Rows are independent, so a server can process several requests as one batch. There are no
    variables: the random numbers of a row's t-th new token depend only on its seed and t.

    For the same seed, XLA and TensorFlow's kernels draw different values. Here TensorFlow's kernels
    compute both, those of XLA with the Gumbel trick,

    ```
    token_t = argmax_i log p_i - log(-log u_i),    u = Philox(seed, t)
    ```

    Args:
        temperature: float `[batch]`, divisor of the logits.
        top_p: float `[batch]`. Tokens are drawn from the smallest set of most likely tokens whose
            total probability exceeds this value.
        top_k: int `[batch]`, number of most likely tokens to draw from, or 0 for all.
        seed: int `[batch]`.
        max_new_tokens: int `[batch]`, maximum number of tokens after the prompt.
        as_compiled: bool, whether to draw as KerasHub's samplers do when compiled by XLA. Defaults
            to False.

    The call arguments are those of `keras_hub.samplers.Sampler`; `mask` is True for prompts.

    >>> sampler = RequestSampler(*map(tf.constant, ([1.0], [1.0], [2], [3], [4])))
    >>> logits = tf.math.log([[0.1, 0.3, 0.6]])
    >>> sampler(
    ...     lambda prompt, cache, index: (logits, None, cache),
    ...     prompt=tf.zeros([1, 5], tf.int32),
    ...     index=1,
    ...     mask=tf.constant([[True, False, False, False, False]]),
    ... ).shape
    TensorShape([1, 5])
    """

    def __init__(self, temperature, top_p, top_k, seed, max_new_tokens, as_compiled=False):
        super().__init__(temperature=temperature[:, None])
        self.top_p = top_p
        self.top_k = top_k
        self.seed = int32_seed(seed)
        self.max_new_tokens = max_new_tokens
        self.as_compiled = as_compiled

    def __call__(
        self, next, prompt, cache=None, index=0, mask=None, stop_token_ids=None, **of_other_samplers
    ):
        """Returns tokens `[batch, length]`, valid up to a stop token or `max_new_tokens`."""
        return self.sample(next, prompt, cache, index, mask, stop_token_ids)[0]

    def sample(self, next, prompt, cache, index, mask, stop_token_ids):
        """Returns the tokens of a call and the final cache; takes the arguments of a call."""
        width = tf.shape(prompt)[1]
        places = tf.range(width)
        begins = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        ends = begins + self.max_new_tokens
        stops = tf.constant(list(stop_token_ids or []), prompt.dtype)

        def goes_on(tokens, cache, index, done):
            return (index < width) & ~tf.reduce_all(done)

        # Keras's slice_update would be an operation that only XLA can compile.
        def step(tokens, cache, index, done):
            logits, _, cache = next(tokens, cache, index)
            drawn = self.draw(self.compute_probabilities(logits), index - begins)
            drawn = tf.cast(drawn, tokens.dtype)[:, None]
            tokens = tf.where((places == index) & ~mask, drawn, tokens)
            stopped = tf.reduce_any(drawn == stops, axis=1) & (index >= begins)
            return tokens, cache, index + 1, done | stopped | (index + 1 >= ends)

        state = (prompt, () if cache is None else cache, tf.cast(index, tf.int32), begins >= ends)
        return tf.while_loop(goes_on, step, state)[:2]

    def draw(self, probabilities, step):
        """Draws token ids `[batch]` from probabilities `[batch, vocabulary]` at steps `[batch]`."""
        seeds = tf.stack([self.seed, tf.maximum(step, 0)], axis=1)
        rows = (probabilities, self.top_p, self.top_k, seeds)
        return tf.map_fn(lambda row: self._draw_row(*row), rows, fn_output_signature=tf.int32)

    def _draw_row(self, probabilities, top_p, top_k, seed):
        """Draws one token id from one row of the probabilities and parameters."""
        size = tf.size(probabilities)
        count = tf.where(top_k == 0, size, tf.minimum(top_k, size))

        # A draw depends on the order of the tokens, so this uses KerasHub's order in each case.
        def all_of_them():
            return probabilities, tf.range(size)

        def likeliest():
            return tuple(tf.math.top_k(probabilities, count, sorted=self.as_compiled))

        def largest_share():
            values, tokens = tf.math.top_k(probabilities, count)
            is_inside = tf.concat([[True], tf.cumsum(values)[:-1] <= top_p], axis=0)
            return tf.where(is_inside, values, 0.0), tokens

        values, tokens = tf.cond(
            top_p < 1, largest_share, lambda: tf.cond(top_k > 0, likeliest, all_of_them)
        )
        return tokens[pick_from_logits(tf.math.log(values), seed, self.as_compiled)]

    def get_config(self):
        raise NotImplementedError("A RequestSampler holds tensors of requests and has no config.")


def pick_from_logits(logits, seed, as_compiled):
    """Draws an index into logits `[count]`, as XLA does or as TensorFlow's kernel does."""
    if not as_compiled:
        return tf.random.stateless_categorical(logits[None], 1, seed, dtype=tf.int32)[0, 0]
    bits = tf.random.stateless_uniform(
        tf.shape(logits), seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    # The upper 23 bits become the fraction of a float32.
    uniform = tf.cast(tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32)), tf.float32) * 2**-23
    uniform = tf.maximum(uniform, np.finfo("float32").tiny)
    return tf.argmax(logits - tf.math.log(-tf.math.log(uniform)), output_type=tf.int32)
