"""Tokenizer of Tensor2Tensor's subword vocabularies."""

import functools
import os
import sys
import unicodedata

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from rt_keras.data.file_reading import read_utf8
from rt_keras.data.tokenizer import ListTokenizer, lookup_table
from rt_keras.keras_internals import find_special_tokens

FILE_NAME = "vocabulary.subwords"
PAD, END = 0, 1
ESCAPING = "\\_u;0123456789"
SPACE, UNDERSCORE, BACKSLASH = map(ord, " _\\")
UNDEFINED = 0x3013
CODE_POINTS = sys.maxunicode + 1


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TSubwordTokenizer(ListTokenizer):
    """Tokenizer with the ids of Tensor2Tensor's `SubwordTextEncoder`.

    A text is split wherever letters and numbers (Unicode categories L and N) meet other characters;
    a single space between two words of letters and numbers is implied and left out. In each part,
    newlines and characters outside the vocabulary are escaped as decimal codes such as `\\9731;`, a
    backslash is doubled, `_` becomes `\\u`, and a `_` is appended. The result is split greedily
    from left to right into the longest subtokens of the vocabulary. Detokenizing restores every
    text exactly. Any tokens can be detokenized: ids outside the vocabulary are skipped, a backslash
    that begins no escape is kept, and an escaped code beyond Unicode becomes U+3013. Surrogate
    codes, which UTF-8 does not have, become U+FFFD.

    The tokenizer consists of operations of TensorFlow and TensorFlow Text, so it runs in `tf.data`
    and in a SavedModel, which can be loaded once `tensorflow_text` is imported. As in
    Tensor2Tensor, Python's `unicodedata` defines which characters are letters and numbers; its
    versions differ in characters new to Unicode. Bytes that are not UTF-8 are read as U+FFFD. The
    start token is padding, not end of text as in the other tokenizers.

    Args:
        vocabulary: list of subtokens, or the path of a file of Tensor2Tensor: UTF-8, with one
            subtoken per line in single or double quotes. The first is `<pad>` or `<pad>_`, the
            second `<EOS>` or `<EOS>_`; each character of a subtoken, and each of `\\_u;0123456789`,
            must be a subtoken too. Ids are indices into the list. None if assets are loaded later.
            Defaults to None.
        vocabulary_size: int or None, the required number of subtokens. Defaults to None, for any
            number.
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
        ValueError: if the vocabulary is not as above, if `sequence_length` is less than 1, or if
            the inputs have two or more dimensions.

    Source: Vaswani et al. 2018, Tensor2Tensor for Neural Machine Translation, and the files
    published with its models.

    Example:

    >>> characters = sorted(set("<pad>_<EOS>_the cat" + ESCAPING))
    >>> tokenizer = T2TSubwordTokenizer(["<pad>_", "<EOS>_", "the_", "ca", *characters])
    >>> tokens = tokenizer("the cat").numpy()
    >>> [tokenizer.id_to_token(token) for token in tokens]
    ['the_', 'ca', 't', '_']
    >>> tokenizer.detokenize(tokens).numpy()
    b'the cat'
    """

    # The format of Tensor2Tensor.
    line = "'{}'\n"

    def __init__(
        self, vocabulary=None, vocabulary_size=None, sequence_length=None, dtype="int32", **kwargs
    ):
        super().__init__(sequence_length, dtype=dtype, **kwargs)
        self._required_size = vocabulary_size
        self.file_assets = [FILE_NAME]
        self._add_pad_and_end("<pad>", "<EOS>")
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    def set_vocabulary(self, vocabulary):
        """Sets the vocabulary: a list of subtokens, or the path of a file."""
        if isinstance(vocabulary, (str, os.PathLike)):
            name, subtokens = os.fspath(vocabulary), _read(vocabulary)
        else:
            name, subtokens = "vocabulary", list(vocabulary)
        _check(name, subtokens, self._required_size)
        self._keep(subtokens)
        with tf.init_scope(), tf.device("cpu"):
            self._alphanumeric = tf.constant(_alphanumeric())
            self._table = lookup_table(subtokens, range(len(subtokens)), -1)
            # The last is for ids outside the vocabulary.
            self._strings = tf.constant(["", "", *subtokens[2:], ""])
        self._longest_subtokens = tf_text.WordpieceTokenizer(
            self._table,
            suffix_indicator="",
            max_bytes_per_word=tf.int32.max,
            max_chars_per_token=max(map(len, subtokens)),
            unknown_token=None,
        )
        self.pad_token, self.end_token = subtokens[:2]
        # In Tensor2Tensor's models a 0 precedes the first token.
        self.start_token = self.pad_token
        find_special_tokens(self)

    def _tokens(self, strings):
        words, texts = _split_words(strings, self._alphanumeric)
        # A text consists of few different words, so each is split into subtokens once.
        words, places = tf.unique(words)
        tokens = self._longest_subtokens.tokenize(_escape(words, self._table))
        count = tf.size(strings, tf.int64)
        tokens = tf.RaggedTensor.from_value_rowids(tf.gather(tokens, places), texts, nrows=count)
        return tokens.merge_dims(1, 2)

    def _texts(self, tokens):
        ids, size = tokens.flat_values, self.vocabulary_size()
        ids = tf.where((ids >= 0) & (ids < size), ids, size)
        escaped = _join(tokens.with_flat_values(tf.gather(self._strings, ids)))
        return _join_words(_unescape(escaped), self._alphanumeric)

    def get_config(self):
        return {**super().get_config(), "vocabulary_size": self._required_size}


def _read(path):
    """Reads the subtokens of a file."""
    text = read_utf8(path)
    # str.splitlines would split subtokens that contain other line separators.
    lines = text.removesuffix("\n").split("\n") if text else []
    return [_unquoted(path, number, line.strip()) for number, line in enumerate(lines, 1)]


def _unquoted(path, number, line):
    if len(line) < 2 or line[0] not in "'\"" or line[-1] != line[0]:
        raise ValueError(
            f"{path}, line {number}: {line!r} must be a subtoken in single quotes, such as 'the_', "
            "or in double quotes"
        )
    return line[1:-1]


def _check(name, subtokens, required_size):
    """Raises a ValueError unless every text has exactly one encoding."""
    for id, names in ((PAD, ("<pad>", "<pad>_")), (END, ("<EOS>", "<EOS>_"))):
        given = repr(subtokens[id]) if id < len(subtokens) else "nothing"
        if given not in map(repr, names):
            raise ValueError(f"{name}, line {id + 1}: {given} must be {' or '.join(names)}")
    lines, alphabet = {}, dict.fromkeys(ESCAPING, "any text may need")
    for line, subtoken in enumerate(subtokens, 1):
        where = f"{name}, line {line}: {subtoken!r}"
        if not subtoken or "\n" in subtoken:
            raise ValueError(f"{where} must have at least one character and no newline")
        if lines.setdefault(subtoken, line) != line:
            raise ValueError(f"{where} must occur once, but is on line {lines[subtoken]} too")
        for character in subtoken:
            alphabet.setdefault(character, f"line {line} contains")
    for character, reason in alphabet.items():
        if character not in lines:
            raise ValueError(
                f"{name}: {character!r}, which {reason}, must itself be a subtoken on some line"
            )
    if required_size not in (None, len(subtokens)):
        raise ValueError(
            f"{name} must have vocabulary_size={required_size} subtokens. Received: "
            f"{len(subtokens)} subtokens"
        )


@functools.cache
def _alphanumeric():
    """Returns a mask of the code points that are letters or numbers."""
    return np.array([unicodedata.category(chr(point))[0] in "LN" for point in range(CODE_POINTS)])


def _join(parts):
    """Joins each row of ragged strings into one string.

    It joins characters, because reduce_join pads the rows and unsorted_segment_join copies a row
    once per string.
    """
    characters = tf.strings.unicode_decode(parts.flat_values, "UTF-8")
    return tf.strings.unicode_encode(parts.with_values(characters).merge_dims(1, 2), "UTF-8")


def _changes(values):
    """Returns a mask of the values that differ from the previous one; True at the first."""
    return tf.concat([tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], axis=0)


def _split_words(texts, alphanumeric):
    """Splits texts into a flat list of words, with the index of each word's text."""
    characters = tf.strings.unicode_decode(texts, "UTF-8")
    points, rows = characters.flat_values, characters.value_rowids()
    begins_text = _changes(rows)
    starts = tf.where(begins_text | _changes(tf.gather(alphanumeric, points)))[:, 0]
    words = tf.RaggedTensor.from_row_starts(points, starts, validate=False)
    first = tf.gather(begins_text, starts)
    last = tf.roll(first, -1, axis=0)
    space = (words.row_lengths() == 1) & (tf.gather(points, starts) == SPACE)
    is_word = first | last | ~space
    words = tf.boolean_mask(tf.strings.unicode_encode(words, "UTF-8"), is_word)
    return words, tf.boolean_mask(tf.gather(rows, starts), is_word)


def _escape(words, table):
    """Escapes special and unknown characters of words and appends an underscore."""
    words = tf.strings.regex_replace(words, r"\\", r"\\\\")
    words = tf.strings.regex_replace(words, "_", r"\\u")
    points = tf.strings.unicode_decode(words, "UTF-8")
    codes = tf.strings.join(["\\", tf.strings.as_string(points.flat_values), ";"])
    characters = tf.strings.unicode_split(words, "UTF-8").flat_values
    parts = tf.where(table.lookup(characters) >= 0, characters, codes)
    return _join(points.with_flat_values(parts)) + "_"


def _unescape(texts):
    """Splits texts into words and reverses `_escape`: `[texts, (words)]`."""
    words = tf.strings.split(texts, "_")
    words = tf.ragged.boolean_mask(words, words != "")
    # Words hold no underscores now, so these can delimit the escapes: every second part is one.
    marked = tf.strings.regex_replace(words.flat_values, r"\\(u|\\|[0-9]+;)", r"_\1_")
    parts = tf.strings.split(marked, "_")
    escaped = tf.where(tf.ragged.range(parts.row_lengths()).flat_values % 2 == 1)
    characters = _unescaped(tf.gather_nd(parts.flat_values, escaped))
    parts = parts.with_flat_values(
        tf.tensor_scatter_nd_update(parts.flat_values, escaped, characters)
    )
    return words.with_flat_values(_join(parts))


def _unescaped(codes):
    """Decodes the escapes `u`, backslash, and decimal codes with a semicolon."""
    digits = tf.strings.regex_replace(codes, "^u$", f"{UNDERSCORE};")
    digits = tf.strings.regex_replace(digits, r"^\\$", f"{BACKSLASH};")
    digits = tf.strings.regex_replace(digits, "^0*([0-9]{1,7});$", r"\1")
    digits = tf.strings.regex_replace(digits, "^.*;$", str(CODE_POINTS))
    points = tf.strings.to_number(digits, tf.int32)
    points = tf.where(points < CODE_POINTS, points, UNDEFINED)
    return tf.strings.unicode_encode(points[:, None], "UTF-8")


def _join_words(words, alphanumeric):
    """Joins words into texts, with a space between adjacent words of letters or numbers."""
    characters = tf.strings.substr(words.flat_values, 0, 1, unit="UTF8_CHAR")
    is_word = tf.gather(alphanumeric, tf.strings.unicode_decode(characters, "UTF-8").flat_values)
    follows = ~_changes(words.value_rowids()) & ~_changes(is_word)
    return _join(words.with_flat_values(tf.where(follows & is_word, " ", "") + words.flat_values))
