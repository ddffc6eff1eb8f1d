"""Byte pairs inside graphs as the `tokenizers` package finds them in Python."""

import tensorflow as tf

from rt_keras.keras_internals import merge_byte_pairs
from rt_keras.models.adapted.text_splits import (
    BORDER,
    refuse,
    split,
    split_at_special,
    with_borders,
)

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Options of a model that only Python follows.
IN_PYTHON = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")


def byte_pair_tokens(tokenizer, rules, texts):
    """Tokenizes texts inside a graph.

    Args:
        tokenizer: the `keras_hub.tokenizers.BytePairTokenizer` with the tables.
        rules: dictionary, a tokenizer.json without vocabulary and merges.
        texts: string `[batch]`, UTF-8.

    Returns:
        Ragged int32 `[batch, (length)]`.

    Raises:
        ValueError: if graphs cannot follow the rules.
    """
    for name in IN_PYTHON:
        if rules["model"].get(name):
            refuse(name, rules["model"][name])
    parts, rows, special = split_at_special(texts, rules["added_tokens"])
    ordinary = _normalized(tf.where(special, "", parts), rules["normalizer"])
    ordinary = _with_borders_of(rules["pre_tokenizer"], ordinary)
    words, places = split(tf.where(special, parts, ordinary))
    rows, special = tf.gather(rows, places), tf.gather(special, places)
    known = tokenizer.cache.lookup(words)

    def with_new():
        new = tf.boolean_mask(words, known == "")
        merge_byte_pairs(tokenizer, new)
        if rules["model"].get("ignore_merges"):
            letters = tokenizer.byte2unicode.lookup(tf.strings.bytes_split(new))
            whole = tf.strings.reduce_join(letters, axis=1)
            chosen = tokenizer.token_to_id_map.lookup(whole) >= 0
            tokenizer.cache.insert(tf.boolean_mask(new, chosen), tf.boolean_mask(whole, chosen))
        return tokenizer.cache.lookup(words)

    pairs = tf.cond(tf.reduce_any(known == ""), with_new, lambda: known)
    # Special tokens may have spaces.
    pairs = tf.where(special, words, tf.strings.regex_replace(pairs, " ", BORDER))
    pairs, places = split(pairs)
    ids, rows = tokenizer.token_to_id_map.lookup(pairs), tf.gather(rows, places)
    # A byte that the vocabulary lacks has no token.
    ids, rows = tf.boolean_mask(ids, ids >= 0), tf.boolean_mask(rows, ids >= 0)
    count = tf.shape(texts, tf.int64)[0]
    return tf.RaggedTensor.from_value_rowids(ids, rows, count, validate=False)


def _normalized(texts, normalizer):
    if normalizer is None:
        return texts
    if normalizer["type"] not in ("NFC", "NFD", "NFKC", "NFKD"):
        refuse("normalizer", normalizer)
    import tensorflow_text

    return tensorflow_text.normalize_utf8(texts, normalizer["type"])


def _with_borders_of(splits, texts):
    """Returns texts with the borders of an entry `pre_tokenizer` of a tokenizer.json."""
    kind = splits and splits["type"]
    if kind == "Sequence":
        for step in splits["pretokenizers"]:
            texts = _with_borders_of(step, texts)
        return texts
    if kind == "Digits":
        return with_borders(texts, r"\p{N}" if splits["individual_digits"] else r"\p{N}+")
    if kind == "ByteLevel":
        if splits["add_prefix_space"]:
            parts, rows = split(texts)
            spaces = tf.where(tf.strings.substr(parts, 0, 1) == " ", "", " ")
            parts = tf.RaggedTensor.from_value_rowids(
                spaces + parts, rows, tf.size(texts, tf.int64)
            )
            texts = tf.strings.reduce_join(parts, axis=1, separator=BORDER)
        return with_borders(texts, GPT2_PATTERN) if splits.get("use_regex", True) else texts
    # Both keep what patterns that match everything match.
    kept = {"behavior": "Isolated", "invert": False}, {"behavior": "Removed", "invert": True}
    options = {name: splits.get(name) for name in kept[0]} if splits else None
    if kind != "Split" or "Regex" not in splits["pattern"] or options not in kept:
        refuse("pre_tokenizer", splits)
    return with_borders(texts, splits["pattern"]["Regex"])
