"""Tokenizer of raw bytes: it needs no vocabulary and represents any text."""

import keras
import tensorflow as tf

from rt_keras.data.tokenizer import ListTokenizer

FIRST_BYTE = 2


@keras.saving.register_keras_serializable(package="rt_keras")
class ByteTokenizer(ListTokenizer):
    """Tokenizer of raw bytes: 0 is padding, 1 is end of text, and byte b has id b + 2.

    Any byte string can be tokenized, valid UTF-8 or not, and detokenizing restores it exactly. The
    tokenizer consists of TensorFlow operations, so it runs in `tf.data` and in a SavedModel.
    Generation starts from end of text, which precedes the first byte of each document in training.

    Args:
        sequence_length: int or None. If given, outputs are dense: padded with 0 or truncated to
            this many tokens. Defaults to None.
        dtype: integer dtype of the tokens. Defaults to "int32".
        **kwargs: other keyword arguments of `keras_hub.tokenizers.Tokenizer`.

    Call arguments:
        inputs: a string, or a batch of strings `[batch]`.

    Returns:
        Tokens `[length]` for one string. For a batch, `[batch, sequence_length]`, or ragged
        `[batch, (length)]` without a `sequence_length`; a direct call outside a TensorFlow function
        turns ragged tokens into lists, as KerasHub's tokenizers do.

    Raises:
        ValueError: if `sequence_length` is less than 1 or the inputs have two or more dimensions.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("hi\\n").numpy()
    array([106, 107,  12], dtype=int32)
    >>> tokenizer.detokenize([1, 106, 107, 12, 1, 0]).numpy()
    b'hi\\n'
    """

    needs_utf8 = False

    def __init__(self, sequence_length=None, dtype="int32", **kwargs):
        super().__init__(sequence_length, dtype=dtype, **kwargs)
        self._keep(["<pad>", "<end>", *map(chr, range(256))])
        self._add_pad_and_end("<pad>", "<end>")

    def _tokens(self, strings):
        octets = tf.io.decode_raw(tf.strings.reduce_join(strings), tf.uint8)
        tokens = tf.cast(octets, tf.int32) + FIRST_BYTE
        return tf.RaggedTensor.from_row_lengths(tokens, tf.strings.length(strings))

    def _texts(self, tokens):
        strings = tf.constant([b"", b""] + [bytes([octet]) for octet in range(256)])
        return tf.strings.reduce_join(tf.gather(strings, tokens), axis=-1)

    def save_assets(self, dir_path):
        """Does nothing: there is no vocabulary."""

    def load_preset_assets(self, preset):
        """Does nothing: there is no vocabulary."""
