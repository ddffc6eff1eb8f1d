"""The tokenizer of a served model: one function each way, which all signatures call."""

import functools
import tempfile
import weakref

import tensorflow as tf

from rt_keras.keras_internals import (
    byte_pair_tokens,
    tokenizes_byte_pairs,
    with_tables_in_files,
)
from rt_keras.models.routing_transformer_causal_lm_preprocessor import strings_of_tokens

_SERVED = weakref.WeakValueDictionary()


def served_tokenizer(tokenizer):
    """Returns the `ServedTokenizer` of a tokenizer, the same one as long as a function uses it.

    >>> from rt_keras import data
    >>> served = served_tokenizer(data.ByteTokenizer())
    >>> ids = served.tokens(tf.constant(["abc", "d"])).to_tensor()
    >>> served.strings(ids, ids > 0).numpy().tolist()
    [b'abc', b'd']
    """
    served = _SERVED.get(id(tokenizer))
    if served is None:
        _SERVED[id(tokenizer)] = served = ServedTokenizer(tokenizer)
    return served


class ServedTokenizer:
    """A tokenizer in the graphs of served functions.

    Args:
        tokenizer: a tokenizer. KerasHub's byte-pair tokenizers are replaced by a smaller graph, and
            the constants of their tables by files.

    Attributes:
        tokens: function from strings `[batch]` to ragged int32 `[batch, (length)]`.
        strings: function from ids, int32 `[batch, length]`, and a bool mask of those to convert, to
            UTF-8 strings `[batch]`.
        resources: list of the tables and modules that the functions may use.
    """

    def __init__(self, tokenizer):
        self.tokenizer, self._encode, used = tokenizer, tokenizer, tokenizer
        if tokenizes_byte_pairs(tokenizer):
            self._folder = tempfile.TemporaryDirectory()
            used = with_tables_in_files(tokenizer, self._folder.name)
            self._encode = functools.partial(byte_pair_tokens, used)
        self._decode = functools.partial(strings_of_tokens, used)
        kinds = tf.Module, tf.saved_model.experimental.TrackableResource
        self.resources = [value for value in vars(used).values() if isinstance(value, kinds)]
        texts = tf.TensorSpec([None], tf.string)
        ids, kept = (tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool))
        # Otherwise, TensorFlow would inline the calls.
        options = {"autograph": False, "experimental_attributes": {"_noinline": True}}
        self.tokens = tf.function(self._tokens, [texts], **options)
        self.strings = tf.function(self._strings, [ids, kept], **options)

    def _tokens(self, texts):
        return tf.cast(self._encode(texts), tf.int32)

    def _strings(self, ids, kept):
        texts = self._decode(ids, kept)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
