"""A bias of each token in the logits, as the paper authors' code has it."""

import contextlib
import contextvars

import keras

from rt_keras.layers.head_group import HeadGroup

TOKEN_BIASES = (None, "fixed", "trainable")

# The biases of the encoder's and of the decoder's tokens. Replicas are threads, each with its own.
_biases = contextvars.ContextVar("token_biases", default=(None, None))


@contextlib.contextmanager
def token_bias_of(encoder=None, decoder=None):
    """Biases of the tokens, for the models that are called in the context.

    The heads of this dialect whose option `token_bias` is not None add them to the logits of their
    keys. Outside the context there is no bias, and steps of cached decoding have none anywhere.

    Args:
        encoder: float `[batch, encoder_length]`, of the keys of attention that is not causal: an
            encoder's, and a decoder's to the encoder. None, the default, for no bias.
        decoder: float `[batch, length]`, of the keys of causal attention. None, the default, for no
            bias.

    >>> from rt_keras.t2t import T2TLocalHeads
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
    """The last base class of this dialect's head groups that take a token bias.

    It follows the group of `rt_keras.layers`, so that the weight comes right after those of
    `HeadGroup`: files of weights number them.

    Args:
        *args: arguments of `HeadGroup`.
        token_bias: what the group does with the bias that `token_bias_of` gives: None, the default,
            to ignore it; "fixed" or "trainable", to add it to the logits of each key, times a
            scalar weight that starts at 1.
        **kwargs: keyword arguments of `HeadGroup`.

    Raises:
        ValueError: if `token_bias` is unknown.
    """

    def __init__(self, *args, token_bias=None, **kwargs):
        super().__init__(*args, **kwargs)
        if token_bias not in TOKEN_BIASES:
            raise ValueError(
                f"token_bias must be one of {TOKEN_BIASES}. Received: token_bias={token_bias!r}"
            )
        self.token_bias = token_bias
        self.token_bias_weight = None

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.token_bias is not None:
            self.token_bias_weight = self.add_weight(
                name="token_bias_weight",
                shape=(),
                initializer="ones",
                trainable=self.token_bias == "trainable",
            )

    def bias_of_keys(self, causal):
        """What the group adds to the logits of each key, `[batch, keys]`, or None."""
        encoder, decoder = _biases.get()
        # A decoder's attention to itself is causal. All other keys are the encoder's.
        bias = decoder if causal else encoder
        if bias is None or self.token_bias is None:
            return None
        weight = keras.ops.cast(self.token_bias_weight, self.compute_dtype)
        return weight * keras.ops.cast(bias, weight.dtype)
