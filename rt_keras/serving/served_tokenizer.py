"""The tokenizer of a served model: one function each way, which all signatures call."""

import functools
import os
import shutil
import tempfile
import weakref

import tensorflow as tf

from rt_keras.models.adapted.tokenizers import BytePairs, adapted_tokenizer
from rt_keras.models.causal_lm.causal_lm_preprocessor import strings_of_tokens

SEPARATORS = set("\t\r\n")
# Otherwise, TensorFlow would inline the calls of a function in each function that calls it.
SHARED = {"autograph": False, "experimental_attributes": {"_noinline": True}}


def shared_while_used(make):
    """Returns a function that makes an object once for each argument, as long as it is in use.

    The object must refer to the argument.
    """
    made = weakref.WeakValueDictionary()

    @functools.wraps(make)
    def shared(argument):
        result = made.get(id(argument))
        if result is None:
            result = made[id(argument)] = make(argument)
        return result

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
        tokenizer: a tokenizer. Tables of byte pairs are files instead of constants.

    Attributes:
        tokens: function from strings `[batch]` to ragged int32 `[batch, (length)]`.
        strings: function from ids, int32 `[batch, length]`, and a bool mask of those to convert, to
            UTF-8 strings `[batch]`.
        resources: list of the tables and modules that the functions may use.
    """

    def __init__(self, tokenizer):
        self.tokenizer, used = tokenizer, adapted_tokenizer(tokenizer)
        # No line of a file can hold the others.
        if isinstance(used, BytePairs) and not SEPARATORS.intersection("".join(used.vocabulary)):
            folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            used = with_tables_in_files(used, folder)
        self._encode, self._decode = used, functools.partial(strings_of_tokens, used)
        kinds = tf.Module, tf.saved_model.experimental.TrackableResource
        self.resources = [value for value in vars(used).values() if isinstance(value, kinds)]
        texts = tf.TensorSpec([None], tf.string)
        ids, mask = (tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool))
        self.tokens = tf.function(self._tokens, [texts], **SHARED)
        self.strings = tf.function(self._strings, [ids, mask], **SHARED)

    def _tokens(self, texts):
        return tf.cast(self._encode(texts), tf.int32)

    def _strings(self, ids, mask):
        texts = self._decode(ids, mask)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def with_tables_in_files(tokenizer, folder):
    """Returns a copy of a byte-pair tokenizer whose tables are not constants of its graph.

    The files in the folder are needed until the graph is saved.
    """

    def write(name, numbers):
        path = os.path.join(folder, name)
        tf.io.write_file(path, "".join(f"{text}\t{number}\n" for text, number in numbers))
        return path

    def table(path, default, *columns):
        return tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(path, *columns), default)

    vocabulary = write("vocabulary.txt", tokenizer.vocabulary.items())
    merges = write("merges.txt", zip(tokenizer.merges, range(len(tokenizer.merges))))
    to_number, to_text = (tf.string, 0, tf.int32, 1), (tf.int32, 1, tf.string, 0)
    # Keras would copy a layer by saving it.
    copy = object.__new__(type(tokenizer))
    vars(copy).update(
        vars(tokenizer),
        token_to_id_map=table(vocabulary, -1, *to_number),
        id_to_token_map=table(vocabulary, "", *to_text),
        merge_ranks=table(merges, tokenizer.merge_ranks_lookup_default, *to_number),
    )
    return copy
