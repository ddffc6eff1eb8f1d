"""Tokenizer of whole words, separated by white space."""

import collections
import os

import keras
import tensorflow as tf

from rt_keras import files
from rt_keras.data.file_reading import read_utf8
from rt_keras.data.tokenizer import ListTokenizer, lookup_table
from rt_keras.keras_internals import find_special_tokens

FILE_NAME = "vocabulary.txt"


@keras.saving.register_keras_serializable(package="rt_keras")
class WordTokenizer(ListTokenizer):
    """Tokenizer of words separated by white space, as in WikiText-103.

    Words outside the vocabulary become `oov_token`, and so do `pad_token` and `end_token` in a
    text. White space is not kept: detokenizing joins words with single spaces. Vocabulary files
    have the format of Tensor2Tensor's `TokenTextEncoder`.

    Args:
        vocabulary: list of words, or the path of a UTF-8 file with one word per line, as written by
            `write_word_vocabulary`. Ids are indices into the list. None if assets are loaded later.
            Defaults to None.
        sequence_length: int or None. If given, outputs are dense: padded or truncated to this many
            words. Defaults to None.
        pad_token: string, the entry for padding. Defaults to "<pad>".
        end_token: string, the entry for end of text. Defaults to "<EOS>".
        oov_token: string, the entry for unknown words. Defaults to "<unk>".
        dtype: integer dtype of the tokens. Defaults to "int32".
        **kwargs: other keyword arguments of `keras_hub.tokenizers.Tokenizer`.

    Call arguments:
        inputs: a string, or a batch of strings `[batch]`.

    Returns:
        Tokens `[length]` for one string. For a batch, `[batch, sequence_length]`, or ragged
        `[batch, (length)]` without a `sequence_length`; a direct call outside a TensorFlow function
        turns ragged tokens into lists, as KerasHub's tokenizers do.

    Raises:
        ValueError: if the file is not UTF-8, or if the vocabulary lacks one of the three entries or
            contains a word twice.

    Example:

    >>> tokenizer = WordTokenizer(["<pad>", "<EOS>", "<unk>", "long", "@-@", "range"])
    >>> tokenizer("long @-@ range walk").numpy()
    array([3, 4, 5, 2], dtype=int32)
    >>> tokenizer.detokenize([3, 4, 5]).numpy()
    b'long @-@ range'
    """

    config_names = ("sequence_length", "pad_token", "end_token", "oov_token")
    more_special_tokens = ("oov_token",)

    def __init__(
        self,
        vocabulary=None,
        sequence_length=None,
        pad_token="<pad>",
        end_token="<EOS>",
        oov_token="<unk>",
        dtype="int32",
        **kwargs,
    ):
        super().__init__(sequence_length, dtype=dtype, **kwargs)
        self.oov_token = oov_token
        self.file_assets = [FILE_NAME]
        self._add_pad_and_end(pad_token, end_token)
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    def set_vocabulary(self, vocabulary):
        """Sets the vocabulary: a list of words, or the path of a file."""
        if isinstance(vocabulary, (str, os.PathLike)):
            vocabulary = read_utf8(vocabulary).removesuffix("\n").split("\n")
        self._keep(vocabulary)
        places = {word: place for place, word in enumerate(vocabulary)}
        if len(places) < len(vocabulary):
            word, _ = collections.Counter(vocabulary).most_common(1)[0]
            raise ValueError(f"vocabulary must contain each word once. Received: {word!r} twice")
        find_special_tokens(self)
        known = [word for word in vocabulary if word not in (self.pad_token, self.end_token)]
        with tf.init_scope(), tf.device("cpu"):
            self._words = tf.constant(vocabulary)
            self._table = lookup_table(
                known, [places[word] for word in known], places[self.oov_token]
            )

    def _tokens(self, strings):
        words = tf.strings.split(strings)
        return words.with_flat_values(self._table.lookup(words.flat_values))

    def _texts(self, tokens):
        ids = tokens.flat_values
        is_word = (ids != self.pad_token_id) & (ids != self.end_token_id)
        tokens = tf.ragged.boolean_mask(tokens, tokens.with_flat_values(is_word))
        words = tokens.with_flat_values(tf.gather(self._words, tokens.flat_values))
        return tf.strings.reduce_join(words, axis=-1, separator=" ")


def write_word_vocabulary(documents, path):
    """Writes the vocabulary of a `WordTokenizer`: all words of a text, most frequent first.

    Words of equal frequency are sorted by their characters, as in Tensor2Tensor.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `rt_keras.data.load_documents`.
        path: path of the file, which is written atomically.

    Returns:
        An int, the number of entries, including `<pad>`, `<EOS>` and `<unk>`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "vocabulary.txt"
    >>> write_word_vocabulary(tf.data.Dataset.from_tensors("a rose is a rose"), path)
    6
    >>> path.read_text().split()
    ['<pad>', '<EOS>', 'a', 'rose', 'is', '<unk>']
    """
    counts = collections.Counter()
    for document in documents.as_numpy_iterator():
        counts.update(document.decode("utf-8").split())
    words = ["<pad>", "<EOS>", *sorted(counts, key=lambda word: (-counts[word], word))]
    words += [] if "<unk>" in counts else ["<unk>"]
    with files.whole_file(path) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)
    return len(words)
