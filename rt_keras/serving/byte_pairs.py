"""KerasHub's byte-pair tokenizers in few operations, with their tables in files."""

import os
import re

import tensorflow as tf

from rt_keras.keras_internals import byte_pair_patterns, initialize_tables, merge_byte_pairs


def byte_pair_tokens(tokenizer, texts):
    """Tokenizes texts inside a graph as `keras_hub.tokenizers.BytePairTokenizer` does.

    KerasHub splits texts at one special token after the other. Each adds a level of lists, and the
    checks of all levels, to the graph. Here, borders are added to the texts, which are then split.

    Args:
        tokenizer: the tokenizer.
        texts: string `[batch]`, UTF-8.

    Returns:
        Ragged int32 `[batch, (length)]`.
    """
    # No pattern matches this byte, which is not UTF-8.
    border = b"\xff"
    special = tokenizer.unsplittable_tokens or []
    first_pattern, second_pattern, white, letters_of = byte_pair_patterns()
    others, replaced = letters_of(special), tf.strings.regex_replace

    def apart(texts, pattern):
        return replaced(texts, f"({pattern})", border + rb"\1" + border)

    def split(texts, separator):
        found = tf.raw_ops.StringSplitV2(input=texts, sep=separator)
        return found.values, found.indices[:, 0]

    if tokenizer.add_prefix_space:
        texts = tf.strings.join([" ", texts])
    marked = replaced(texts, rf"( )([^\s{white}])", r"६\1\2")
    marked = replaced(marked, rf"(\s{white})$", r"\1६")
    for token, other in zip(special, others):
        marked = replaced(marked, re.escape(token), border + other.encode() + border)
    parts, rows = split(apart(marked, first_pattern), border)
    words, places = split(apart(parts, second_pattern), border)
    # The last ones first, because the second one is the beginning of the eleventh.
    for token, other in zip(special[::-1], others[::-1]):
        words = replaced(words, re.escape(other), token)
    kept = tf.where((words != "") & (words != "६"))[:, 0]
    words, rows = tf.gather(words, kept), tf.gather(rows, tf.gather(places, kept))
    known = tokenizer.cache.lookup(words)

    def with_new():
        merge_byte_pairs(tokenizer, tf.boolean_mask(words, known == ""))
        return tokenizer.cache.lookup(words)

    pairs = tf.cond(tf.reduce_any(known == ""), with_new, lambda: known)
    pairs, places = split(pairs, " ")
    ids, count = tokenizer.token_to_id_map.lookup(pairs), tf.shape(texts, tf.int64)[0]
    return tf.RaggedTensor.from_value_rowids(ids, tf.gather(rows, places), count, validate=False)


def with_tables_in_files(tokenizer, folder):
    """Returns a copy of a byte-pair tokenizer whose tables are not constants of its graph.

    Args:
        tokenizer: the tokenizer.
        folder: string, the folder of the files, which are needed until the graph is saved.
    """

    def table(name, numbers, default, by_number=False):
        path = os.path.join(folder, name)
        lines = [f"{text}\t{number}\n" for text, number in numbers]
        tf.io.write_file(path, "".join(lines))
        columns = [(tf.string, 0), (tf.int32, 1)]
        columns = columns[::-1] if by_number else columns
        (key, key_at), (value, value_at) = columns
        read = tf.lookup.TextFileInitializer(path, key, key_at, value, value_at)
        return tf.lookup.StaticHashTable(read, default)

    initialize_tables(tokenizer)
    # Keras would copy a layer by saving it.
    copy = object.__new__(type(tokenizer))
    vocabulary = tokenizer.vocabulary.items()
    merges = [(merge, rank) for rank, merge in enumerate(tokenizer.merges)]
    vars(copy).update(
        vars(tokenizer),
        token_to_id_map=table("vocabulary.txt", vocabulary, -1),
        id_to_token_map=table("vocabulary.txt", vocabulary, "", by_number=True),
        merge_ranks=table("merges.txt", merges, tokenizer.merge_ranks_lookup_default),
    )
    return copy
