"""Text as bytes: no vocabulary to train, nothing that cannot be written."""

import keras
import tensorflow as tf

from rt_keras.data.tokenizer import TextTokenizer

PAD, END, FIRST_BYTE = 0, 1, 2


@keras.saving.register_keras_serializable(package="rt_keras")
class ByteTokenizer(TextTokenizer):
    """Tokenizer of raw bytes: 0 is padding, 1 is end of text, byte b is b + 2.

    Every string of bytes is a text, valid UTF-8 or not, and comes back as it was. All of it is
    TensorFlow operations, so it runs in `tf.data` and inside a SavedModel. Generation starts from
    end of text, which is what precedes the first byte of a document in the training data.

    Args:
        sequence_length: int or None. If given, outputs are dense: padded with 0 or cut to this
            many tokens.
        dtype: an integer type for the tokens.
        **kwargs: those of `keras_hub.tokenizers.Tokenizer`.

    Call arguments:
        inputs: a string, or a batch of strings `[batch]`.

    Returns:
        Tokens `[length]` for one string. For a batch, `[batch, sequence_length]`, or without a
        `sequence_length` ragged `[batch, (length)]`; a direct call outside of a TensorFlow
        function turns ragged tokens into lists, as KerasHub's tokenizers do.

    Raises:
        ValueError: if `sequence_length` is less than 1 or the inputs have two or more dimensions.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("hi\\n").numpy()
    array([106, 107,  12], dtype=int32)
    >>> tokenizer.detokenize([1, 106, 107, 12, 1, 0]).numpy()
    b'hi\\n'
    """

    needs_utf8 = fails_on_bytes = False

    def __init__(self, sequence_length=None, dtype="int32", **kwargs):
        if sequence_length is not None and sequence_length < 1:
            raise ValueError(f"sequence_length={sequence_length}: it must be at least 1, or None")
        super().__init__(dtype=dtype, **kwargs)
        self.sequence_length = sequence_length
        self._add_pad_and_end("<pad>", "<end>")

    def vocabulary_size(self):
        """The number of tokens: 256 bytes and two of our own."""
        return FIRST_BYTE + 256

    def get_vocabulary(self):
        """The tokens as strings, in the order of their ids; byte b is written as `chr(b)`."""
        return ["<pad>", "<end>", *map(chr, range(256))]

    def id_to_token(self, id):
        """The string that `get_vocabulary` has for an id."""
        if not 0 <= id < self.vocabulary_size():
            raise ValueError(f"id={id}: it must be from 0 to {self.vocabulary_size() - 1}")
        return self.get_vocabulary()[id]

    def token_to_id(self, token):
        """The id of a string of `get_vocabulary`."""
        if token not in self.get_vocabulary():
            raise ValueError(f"token={token!r}: it must be '<pad>', '<end>' or chr(0) to chr(255)")
        return self.get_vocabulary().index(token)

    def tokenize(self, inputs):
        """Strings to tokens; see the class for shapes."""
        with tf.device("cpu"):
            inputs = tf.convert_to_tensor(inputs, tf.string)
            if inputs.shape.rank not in (0, 1):
                raise ValueError(
                    f"inputs has shape {inputs.shape}: it must be a string or a batch of strings"
                )
            # One decoding of all strings joined: a book costs a copy, not an operation a byte.
            octets = tf.io.decode_raw(tf.strings.reduce_join(inputs), tf.uint8)
            tokens = tf.cast(octets, self.compute_dtype) + FIRST_BYTE
            lengths = tf.strings.length(tf.reshape(inputs, [-1]))
            tokens = tf.RaggedTensor.from_row_lengths(tokens, lengths)
            if self.sequence_length is not None:
                # Padding comes first, as to_tensor() ignores its shape when all rows are empty.
                padding = tf.fill(
                    [tf.size(inputs), self.sequence_length], tf.cast(PAD, tokens.dtype)
                )
                tokens = tf.concat([tokens, padding], axis=1)[:, : self.sequence_length].to_tensor()
                tokens = tf.reshape(tokens, [tf.size(inputs), self.sequence_length])
            return tokens[0] if inputs.shape.rank == 0 else tokens

    def detokenize(self, inputs):
        """Tokens to strings, the exact bytes; padding and end of text leave no trace.

        Args:
            inputs: integer `[length]`, `[batch, length]` or ragged `[batch, (length)]`.

        Returns:
            A string tensor, of shape `[]` or `[batch]`.
        """
        with tf.device("cpu"):
            if isinstance(inputs, list) and inputs and isinstance(inputs[0], list):
                inputs = tf.ragged.constant(inputs)
            tokens = tf.cast(inputs, tf.int32)
            strings = tf.constant([b"", b""] + [bytes([octet]) for octet in range(256)])
            return tf.strings.reduce_join(tf.gather(strings, tokens), axis=-1)

    def save_assets(self, dir_path):
        """Writes nothing: there is no vocabulary."""

    def load_preset_assets(self, preset):
        """Reads nothing: there is no vocabulary."""

    def get_config(self):
        return {**super().get_config(), "sequence_length": self.sequence_length}
