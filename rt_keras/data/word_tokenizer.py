"""Text as whole words, which white space separates."""

import collections
import os

import keras
import tensorflow as tf

from rt_keras import files
from rt_keras.data.tokenizer import ListTokenizer, batch_of_tokens, read_utf8

FILE_NAME = "vocabulary.txt"


@keras.saving.register_keras_serializable(package="rt_keras")
class WordTokenizer(ListTokenizer):
    """The words of a text as WikiText-103 has them: whatever white space separates.

    Words that are not in the vocabulary become `oov_token`, and so do the names of padding and of
    the end of a text. White space is not kept: detokenizing joins words by single spaces. Files are
    those of Tensor2Tensor's `TokenTextEncoder`.

    Args:
        vocabulary: a list of words, or the path of a file with one a line, as
            `write_word_vocabulary` makes it. Ids are places in the list. None if assets will be
            loaded.
        sequence_length: int or None. If given, outputs are dense: padded or cut to this many words.
        pad_token, end_token, oov_token: the entries for padding, for the end of a text, and for
            unknown words.
        dtype: an integer type for the tokens.
        **kwargs: those of `keras_hub.tokenizers.Tokenizer`.

    Raises:
        ValueError: if the vocabulary lacks one of the three, or has a word twice.

    Example:

    >>> tokenizer = WordTokenizer(["<pad>", "<EOS>", "<unk>", "long", "@-@", "range"])
    >>> tokenizer("long @-@ range walk").numpy()
    array([3, 4, 5, 2], dtype=int32)
    >>> tokenizer.detokenize([3, 4, 5]).numpy()
    b'long @-@ range'
    """

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
        if sequence_length is not None and sequence_length < 1:
            raise ValueError(f"sequence_length={sequence_length}: it must be at least 1, or None")
        super().__init__(dtype=dtype, **kwargs)
        self.sequence_length = sequence_length
        self.oov_token = oov_token
        self.file_assets = [FILE_NAME]
        self._add_pad_and_end(pad_token, end_token)
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    def set_vocabulary(self, vocabulary):
        """Takes the words of a file, given by its path, or of a list."""
        if isinstance(vocabulary, (str, os.PathLike)):
            vocabulary = read_utf8(vocabulary).removesuffix("\n").split("\n")
        self._keep(vocabulary)
        places = {word: place for place, word in enumerate(vocabulary)}
        if len(places) < len(vocabulary):
            word, _ = collections.Counter(vocabulary).most_common(1)[0]
            raise ValueError(f"vocabulary has {word!r} twice: each word must be there once")
        self._update_special_token_ids()
        if self.oov_token not in places:
            raise ValueError(
                f"oov_token={self.oov_token!r} is not in the vocabulary: name with oov_token= the "
                "entry for unknown words"
            )
        self._oov = places[self.oov_token]
        known = [word for word in vocabulary if word not in (self.pad_token, self.end_token)]
        with tf.init_scope(), tf.device("cpu"):
            self._words = tf.constant(vocabulary)
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(known), tf.constant([places[word] for word in known], tf.int64)
                ),
                self._oov,
            )

    def tokenize(self, inputs):
        """A string, or strings `[batch]`, to tokens `[length]`, or ragged `[batch, (length)]`."""
        with tf.device("cpu"):
            words = tf.strings.split(tf.convert_to_tensor(inputs, tf.string))
            if isinstance(words, tf.RaggedTensor):
                tokens = words.with_flat_values(self._table.lookup(words.flat_values))
            else:
                tokens = self._table.lookup(words)
            tokens = tf.cast(tokens, self.compute_dtype)
            return tokens if self.sequence_length is None else self._fill(tokens)

    def _fill(self, tokens):
        """Dense tokens of `sequence_length`, padded or cut."""
        one = not isinstance(tokens, tf.RaggedTensor)
        tokens = tf.RaggedTensor.from_tensor(tokens[None]) if one else tokens
        tokens = tokens.to_tensor(self.pad_token_id, shape=[None, self.sequence_length])
        return tokens[0] if one else tokens

    def detokenize(self, inputs):
        """Tokens `[length]`, or a batch of them, to a string or strings.

        Padding and end of text leave no trace.
        """
        with tf.device("cpu"):
            batch, one = batch_of_tokens(inputs)
            ids = batch.flat_values
            said = (ids != self.pad_token_id) & (ids != self.end_token_id)
            batch = tf.ragged.boolean_mask(batch, batch.with_flat_values(said))
            words = batch.with_flat_values(tf.gather(self._words, batch.flat_values))
            texts = tf.strings.reduce_join(words, axis=-1, separator=" ")
            return texts[0] if one else texts

    def save_assets(self, dir_path):
        """Writes the vocabulary into a folder, one word a line."""
        with open(os.path.join(dir_path, FILE_NAME), "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{word}\n" for word in self.get_vocabulary())

    def get_config(self):
        return {
            **super().get_config(),
            "sequence_length": self.sequence_length,
            "pad_token": self.pad_token,
            "end_token": self.end_token,
            "oov_token": self.oov_token,
        }


def write_word_vocabulary(documents, path):
    """Writes the vocabulary of a `WordTokenizer`: all words of a text, the most frequent first.

    Words of the same frequency stand in the order of their characters, as Tensor2Tensor has them.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `rt_keras.data.load_documents`.
        path: the file to write, whole or not at all.

    Returns:
        The number of entries, which `<pad>`, `<EOS>` and `<unk>` are among.

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
