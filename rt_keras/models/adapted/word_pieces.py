"""BERT's word pieces inside graphs as the `tokenizers` package finds them in Python."""

import tensorflow as tf

from rt_keras.models.adapted.text_splits import (
    BORDER,
    WHITE,
    in_brackets,
    refuse,
    split,
    split_at_special,
)

CHINESE = (
    r"([\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}"
    r"\x{2a700}-\x{2b81f}\x{2b920}-\x{2ceaf}\x{2f800}-\x{2fa1f}])"
)


def word_piece_tokens(pieces_of_words, rules, texts):
    """Tokenizes texts inside a graph.

    Args:
        pieces_of_words: function from words `[words]` to ragged ids `[words, (pieces)]`.
        rules: dictionary, a tokenizer.json without vocabulary.
        texts: string `[batch]`, UTF-8.

    Returns:
        Ragged int32 `[batch, (length)]`.

    Raises:
        ValueError: if graphs cannot follow the rules.
    """
    for name, kind in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
        if (rules[name] or {}).get("type") != kind:
            refuse(name, rules[name])
    for token in rules["added_tokens"]:
        if token["normalized"]:
            refuse("added token with normalized", token["content"])
    parts, rows, special = split_at_special(texts, rules["added_tokens"])
    ordinary = _normalized(tf.where(special, "", parts), rules["normalizer"])
    ordinary = tf.strings.regex_replace(ordinary, f"[{WHITE}]+", BORDER)
    punctuation = f"([{in_brackets('punctuation')}])"
    ordinary = tf.strings.regex_replace(ordinary, punctuation, BORDER + rb"\1" + BORDER)
    words, places = split(tf.where(special, parts, ordinary))
    too_long = tf.strings.length(words, "UTF8_CHAR") > rules["model"]["max_input_chars_per_word"]
    pieces = pieces_of_words(tf.where(too_long, rules["model"]["unk_token"], words))
    rows = tf.gather(tf.gather(rows, places), pieces.value_rowids())
    count = tf.shape(texts, tf.int64)[0]
    return tf.RaggedTensor.from_value_rowids(pieces.values, rows, count, validate=False)


def _normalized(texts, normalizer):
    replaced, lowercase = tf.strings.regex_replace, normalizer["lowercase"]
    if normalizer["clean_text"]:
        control = rf"[{in_brackets('control')}\p{{Co}}]"
        texts = replaced(replaced(texts, r"[\t\n\r]", " "), control, "")
    if normalizer["handle_chinese_chars"]:
        texts = replaced(texts, CHINESE, r" \1 ")
    accents = normalizer["strip_accents"]
    if lowercase if accents is None else accents:
        import tensorflow_text

        apart = tensorflow_text.normalize_utf8(texts, "NFD")
        texts = replaced(apart, f"[{in_brackets('marks')}]", "")
    # TensorFlow alone would write another sigma at the end of a word.
    return tf.strings.lower(replaced(texts, "Σ", "σ"), "utf-8") if lowercase else texts
