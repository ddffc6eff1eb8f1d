"""Base classes and helper functions of the tokenizers."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.batches import check_at_least_one
from rt_keras.keras_internals import SpecialTokens, add_special_token


class TextTokenizer(SpecialTokens, keras_hub.tokenizers.Tokenizer):
    """Base class of the tokenizers: special tokens, input checks, and loading from a folder.

    Preprocessors, pipelines and models use four attributes of a tokenizer: `pad_token_id`;
    `end_token_id`, which ends every document; `start_token_id`, the same token, since the end of
    one document precedes the next (in `T2TSubwordTokenizer` it is padding, as its models require);
    and `needs_utf8`, whether text must be valid UTF-8.
    """

    needs_utf8 = True
    # `tokenize` fails on bytes that are not UTF-8.
    fails_on_bytes = True
    # Constructor arguments that are stored in attributes of the same names.
    config_names = ()
    # Attributes of tokens that the vocabulary must have, beside padding and end of text.
    more_special_tokens = ()

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        # There is nothing to build, but `quantize` of a model requires every layer to be built.
        self.built = True

    @property
    def is_loaded(self):
        """False for a tokenizer of a preset until KerasHub has read its vocabulary."""
        return self.pad_token_id is not None

    def __call__(self, inputs, *args, **kwargs):
        check_strings("inputs", inputs, self.fails_on_bytes)
        return super().__call__(inputs, *args, **kwargs)

    def _add_pad_and_end(self, pad_token, end_token):
        add_special_token(self, pad_token, "pad_token")
        add_special_token(self, end_token, "end_token")
        add_special_token(self, end_token, "start_token")

    def check_special_tokens(self):
        """Raises a ValueError if a special token is not in the vocabulary."""
        vocabulary = set(self.get_vocabulary())
        for name in ("pad_token", "end_token", *self.more_special_tokens):
            if getattr(self, name) not in vocabulary:
                needed = f"one of the {len(vocabulary)} entries of the vocabulary"
                raise wrong_value(name, needed, getattr(self, name))

    def get_config(self):
        return super().get_config() | {name: getattr(self, name) for name in self.config_names}

    @classmethod
    def from_preset(cls, preset, config_file="tokenizer.json", **kwargs):
        """Loads a tokenizer saved by `save_to_preset`.

        Args:
            preset: path of a folder, with or without a model, or any handle that KerasHub accepts.
            config_file: name of the tokenizer's config file. Defaults to "tokenizer.json".
            **kwargs: keyword arguments of the constructor to override.

        Returns:
            A tokenizer of the saved class.

        Raises:
            ValueError: if the saved class is neither this class nor a subclass of it.
        """
        path = os.path.join(preset, config_file)
        if not os.path.isfile(path):
            return super().from_preset(preset, config_file=config_file, **kwargs)
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["config"].update(kwargs)
        tokenizer = keras.saving.deserialize_keras_object(config)
        if not isinstance(tokenizer, cls):
            raise ValueError(
                f"preset must hold a {cls.__name__}. Received: preset={preset!r}, which holds a "
                f"{type(tokenizer).__name__}"
            )
        tokenizer.load_preset_assets(preset)
        return tokenizer


class ListTokenizer(TextTokenizer):
    """Base class of tokenizers whose vocabulary is a list: ids are indices into it.

    A subclass stores the list with `_keep`. Unless the list is fixed, the subclass also defines
    `set_vocabulary`, which takes a list or the path of a file, and names that file in
    `file_assets`. Bytes that are not UTF-8 are read as U+FFFD.

    Args:
        sequence_length: int or None. If given, outputs are dense: padded or truncated to this many
            tokens. Defaults to None.
        **kwargs: keyword arguments of `keras_hub.tokenizers.Tokenizer`.
    """

    fails_on_bytes = False
    config_names = ("sequence_length",)
    # The format of a line in the vocabulary file.
    line = "{}\n"
    _vocabulary = None

    def __init__(self, sequence_length=None, **kwargs):
        check_at_least_one(sequence_length=sequence_length)
        super().__init__(**kwargs)
        self.sequence_length = sequence_length

    def _keep(self, vocabulary):
        # An array instead of a list, since Keras tracks every entry of a list.
        self._vocabulary = np.array(vocabulary, dtype=object)

    def vocabulary_size(self):
        """Returns the number of tokens, including padding and end of text."""
        return len(self.get_vocabulary())

    def get_vocabulary(self):
        """Returns the list of tokens, in the order of their ids."""
        if self._vocabulary is None:
            raise ValueError("vocabulary must be given, or assets loaded. Received: neither.")
        return self._vocabulary.tolist()

    def id_to_token(self, id):
        """Returns the token of an id."""
        if not 0 <= id < self.vocabulary_size():
            raise wrong_value("id", f"from 0 to {self.vocabulary_size() - 1}", id)
        return self._vocabulary[id]

    def token_to_id(self, token):
        """Returns the id of a token."""
        vocabulary = self.get_vocabulary()
        if token not in vocabulary:
            raise wrong_value("token", "in the vocabulary", token)
        return vocabulary.index(token)

    def tokenize(self, inputs):
        """Converts strings to tokens; see the class for shapes."""
        with tf.device("cpu"):
            strings, one = batch_of_strings(inputs)
            tokens = tf.cast(self._tokens(strings), self.compute_dtype)
            if self.sequence_length is not None:
                tokens = filled(tokens, self.sequence_length, self.pad_token_id)
            return tokens[0] if one else tokens

    def detokenize(self, inputs):
        """Converts tokens to strings, without padding and end of text.

        Args:
            inputs: int `[length]`, `[batch, length]` or ragged `[batch, (length)]`.

        Returns:
            String tensor, `[]` or `[batch]`.
        """
        with tf.device("cpu"):
            tokens, one = batch_of_tokens(inputs)
            texts = self._texts(tokens)
            return texts[0] if one else texts

    def save_assets(self, dir_path):
        """Writes the vocabulary to a folder, one token per line."""
        path = os.path.join(dir_path, self.file_assets[0])
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(map(self.line.format, self.get_vocabulary()))

    def load_assets(self, dir_path):
        """Loads a vocabulary saved by `save_assets` from a folder."""
        self.set_vocabulary(os.path.join(dir_path, self.file_assets[0]))


def filled(tokens, length, pad_token_id):
    """Makes ragged tokens `[batch, (length)]` dense, cut or padded to a length."""
    tokens = tokens[:, :length].to_tensor(pad_token_id)
    # Padded here, since to_tensor ignores a shape when all rows are empty.
    padding = [[0, 0], [0, length - tf.shape(tokens)[1]]]
    return tf.ensure_shape(tf.pad(tokens, padding, constant_values=pad_token_id), [None, length])


def fingerprint(tokenizer):
    """Returns the SHA-256 sum of a tokenizer's class, config and asset files.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`.

    Returns:
        String of 64 hexadecimal digits, equal for tokenizers with the same configuration and
        assets.

    >>> from rt_keras.data import ByteTokenizer
    >>> fingerprint(ByteTokenizer()) == fingerprint(ByteTokenizer())
    True
    """
    # Keras appends numbers to the names of layers.
    config = {name: value for name, value in tokenizer.get_config().items() if name != "name"}
    total = hashlib.sha256(type(tokenizer).__name__.encode())
    total.update(json.dumps(config, sort_keys=True).encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_assets(folder)
        for path in sorted(Path(folder).iterdir()):
            total.update(path.name.encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def needs_utf8(tokenizer):
    """Returns whether a tokenizer requires valid UTF-8, as those of KerasHub do."""
    return getattr(tokenizer, "needs_utf8", True)


def check_strings(name, strings, needs_utf8):
    """Raises an error that names the argument if a tokenizer cannot read it.

    Inside TensorFlow functions nothing is checked; `rt_keras.serving` has its own checks.

    Args:
        name: string, name of the argument.
        strings: a string, or a batch of strings, of Python, NumPy or TensorFlow.
        needs_utf8: bool, whether bytes must be valid UTF-8. Python strings must always be
            encodable: a lone surrogate, as in `sys.argv` for a byte that is not UTF-8, raises an
                error.

    Raises:
        TypeError: if an element is not a string.
        ValueError: if an element is not valid UTF-8.

    >>> check_strings("prompts", ["a rose", b"\\xff"], needs_utf8=True)
    Traceback (most recent call last):
    ...
    ValueError: prompts 1 must be valid UTF-8. Received: b'\\xff' (invalid start byte)
    """
    if isinstance(strings, tf.RaggedTensor):
        strings = strings.flat_values
    if tf.is_tensor(strings):
        if not hasattr(strings, "numpy"):
            return
        strings = strings.numpy()
    strings = np.asarray(strings, dtype=object)
    for place, string in enumerate(strings.ravel()):
        one = f"{name} {place}" if strings.size > 1 else name
        if not isinstance(string, (str, bytes)):
            raise TypeError(f"{one} must be a string. Received: {string!r}")
        try:
            if isinstance(string, str):
                string.encode("utf-8")
            elif needs_utf8:
                string.decode("utf-8")
        except UnicodeError as error:
            start = repr(string) if len(string) <= 80 else f"{string[:80]!r}..."
            message = f"{one} must be valid UTF-8. Received: {start} ({error.reason})"
            raise ValueError(message) from None


def lookup_table(words, ids, default):
    """Returns a table from words to their ids, with an id for all other words."""
    table = tf.lookup.KeyValueTensorInitializer(tf.constant(words), tf.constant(ids, tf.int64))
    return tf.lookup.StaticHashTable(table, default)


def batch_of_strings(strings):
    """Returns strings as `[batch]`, and whether they were a single string."""
    strings = tf.convert_to_tensor(strings, tf.string)
    if strings.shape.rank not in (0, 1):
        raise ValueError(
            f"inputs must be a string or a batch of strings. Received: shape {strings.shape}"
        )
    return tf.reshape(strings, [-1]), strings.shape.rank == 0


def batch_of_tokens(tokens):
    """Returns tokens as int32 ragged `[batch, (length)]`, and whether they were one sequence."""
    if isinstance(tokens, list) and tokens and isinstance(tokens[0], list):
        tokens = tf.ragged.constant(tokens)
    tokens = tf.cast(tokens, tf.int32)
    one = tokens.shape.rank != 2
    batch = tokens[None] if one else tokens
    if not isinstance(batch, tf.RaggedTensor):
        batch = tf.RaggedTensor.from_tensor(batch)
    return batch, one
