"""The tokenizer of a served model: one function each way, which all signatures call."""

import functools
import shutil
import tempfile
import weakref

import tensorflow as tf

from rt_keras.keras_internals import tokenizes_byte_pairs
from rt_keras.models.routing_transformer_causal_lm_preprocessor import strings_of_tokens
from rt_keras.serving.byte_pairs import byte_pair_tokens, with_tables_in_files

# Otherwise, TensorFlow would inline the calls of a function in each function that calls it.
SHARED = {"autograph": False, "experimental_attributes": {"_noinline": True}}


def shared_while_used(make):
    """Returns a function that makes an object once for each argument, as long as it is in use.

    The object must refer to the argument.
    """
    made = weakref.WeakValueDictionary()

    @functools.wraps(make)
    def shared(argument):
        found = made.get(id(argument))
        if found is None:
            found = made[id(argument)] = make(argument)
        return found

    return shared


@shared_while_used
def served_tokenizer(tokenizer):
    """Returns the `ServedTokenizer` of a tokenizer, the same one for all signatures.

    >>> from rt_keras import data
    >>> served = served_tokenizer(data.ByteTokenizer())
    >>> ids = served.tokens(tf.constant(["abc", "d"])).to_tensor()
    >>> served.strings(ids, ids > 0).numpy().tolist()
    [b'abc', b'd']
    """
    return ServedTokenizer(tokenizer)


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
            folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            used = with_tables_in_files(tokenizer, folder)
            self._encode = functools.partial(byte_pair_tokens, used)
        self._decode = functools.partial(strings_of_tokens, used)
        kinds = tf.Module, tf.saved_model.experimental.TrackableResource
        self.resources = [value for value in vars(used).values() if isinstance(value, kinds)]
        texts = tf.TensorSpec([None], tf.string)
        ids, kept = (tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool))
        self.tokens = tf.function(self._tokens, [texts], **SHARED)
        self.strings = tf.function(self._strings, [ids, kept], **SHARED)

    def _tokens(self, texts):
        return tf.cast(self._encode(texts), tf.int32)

    def _strings(self, ids, kept):
        texts = self._decode(ids, kept)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
