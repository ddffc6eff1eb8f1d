"""Additive bias of each token in the attention logits, as in the authors' code."""

import contextlib
import contextvars

import keras

from rt_keras.arguments import wrong_value
from rt_keras.layers.head_group import HeadGroup

TOKEN_BIASES = (None, "fixed", "trainable")

# The biases of the encoder's and the decoder's tokens. Each replica is a thread with its own.
_biases = contextvars.ContextVar("token_biases", default=(None, None))


@contextlib.contextmanager
def token_bias_of(encoder=None, decoder=None):
    """Context manager that sets the token biases of models called inside it.

    Heads whose option `token_bias` is not None add the biases to the logits of
    their keys. Outside the context there is no bias. Cached decode steps never use it.

    Args:
        encoder: float `[batch, encoder_length]`, bias of the keys of non-causal attention, in an
            encoder or from a decoder to it; or None. Defaults to None.
        decoder: float `[batch, length]`, bias of the keys of causal attention, or None. Defaults to
            None.

    >>> from rt_keras.convert.t2t.heads import T2TLocalHeads
    >>> heads = T2TLocalHeads(2, block_size=4, token_bias="fixed")
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> with token_bias_of(decoder=keras.random.normal([1, 10])):
    ...     output = heads(x, x, x, use_causal_mask=True)
    >>> output.shape
    TensorShape([1, 2, 10, 8])
    """
    before = _biases.set((encoder, decoder))
    try:
        yield
    finally:
        _biases.reset(before)


class TokenBias(HeadGroup):
    """First base class of the head groups with a token bias.

    Args:
        *args: arguments of the next base class.
        token_bias: None, "fixed" or "trainable". None ignores the bias of `token_bias_of`.
            Otherwise it is multiplied by a fixed or trainable scalar weight, initially 1, and added
            to the logits of each key. Defaults to None.
        **kwargs: keyword arguments of the next base class.

    Raises:
        ValueError: if `token_bias` is unknown.
    """

    def __init__(self, *args, token_bias=None, **kwargs):
        super().__init__(*args, **kwargs)
        if token_bias not in TOKEN_BIASES:
            raise wrong_value("token_bias", f"one of {TOKEN_BIASES}", token_bias)
        self.token_bias = token_bias
        self.token_bias_weight = None

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.token_bias is not None:
            options = {"initializer": "ones", "trainable": self.token_bias == "trainable"}
            self.token_bias_weight = self.add_weight(shape=(), name="token_bias_weight", **options)

    def bias_of_keys(self, causal):
        """Returns the term added to the logits of each key, `[batch, keys]`, or None."""
        encoder, decoder = _biases.get()
        # Only a decoder's self-attention is causal. All other keys are the encoder's.
        bias = decoder if causal else encoder
        if bias is None or self.token_bias is None:
            return None
        weight = keras.ops.cast(self.token_bias_weight, self.compute_dtype)
        return weight * keras.ops.cast(bias, weight.dtype)

    def get_config(self):
        return {**super().get_config(), "token_bias": self.token_bias}
