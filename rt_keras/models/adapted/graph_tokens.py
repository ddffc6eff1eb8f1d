"""Tokens inside graphs, the same that the `tokenizers` package finds in Python.

The patterns of TensorFlow, RE2's, have only ASCII's whitespace and cannot look ahead. Here, borders
are put into texts, which are then split at all of them. RE2's classes of characters are of another
version of Unicode: patterns name the characters that the `tokenizers` package has in a class.
"""

import functools
import re

import tensorflow as tf
from tokenizers import Regex
from tokenizers.normalizers import BertNormalizer, Replace
from tokenizers.pre_tokenizers import Punctuation

from rt_keras.keras_internals import merge_byte_pairs

# No pattern matches these bytes, which are not UTF-8: the border of two parts, and the beginning of
# a special token.
BORDER, SPECIAL = b"\xff", b"\xfe"
# Unicode's whitespace, in brackets.
WHITE = r"\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
# All whitespace before a word, but for the last.
LOOKAHEAD = r"\s+(?!\S)|"
# What RE2 lacks or reads in another way.
FOREIGN = re.compile(r"\(\?[^:i]|[*+?]\+|\d\}\+|&&|\\[^srntpP\W]")
CLASS = r"\\s|\\p\{\w+\}|\\p\w"
# All characters but surrogates and those for private use beyond the first plane.
CHARACTERS = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200)]
CHARACTERS, OTHER = "".join(map(chr, CHARACTERS)), "\U00040000"
# What BERT's normalizer and splits remove.
OF_BERT = {
    "control": BertNormalizer(True, False, False, False).normalize_str,
    "marks": BertNormalizer(False, False, True, False).normalize_str,
    "punctuation": lambda x: "".join(y for y, _ in Punctuation("removed").pre_tokenize_str(x)),
}
CHINESE = (
    r"([\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}"
    r"\x{2a700}-\x{2b81f}\x{2b920}-\x{2ceaf}\x{2f800}-\x{2fa1f}])"
)
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Options of byte pairs that only Python follows.
IN_PYTHON = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
# A splitting rule keeps what its pattern matches with these options. The second pair inverts it.
KEEPING = {"behavior": "Isolated", "invert": False}, {"behavior": "Removed", "invert": True}
# SentencePiece's mark of a space, and what it does as well, for models that come from it.
SPACE = "▁"
KNOWN = {"Precompiled", "Strip", "Replace", "Prepend", "Split", "WhitespaceSplit", "Metaspace"}


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
    # [parts]
    parts, rows, special = _split_at_special(texts, rules["added_tokens"])
    ordinary = _normalized(tf.where(special, "", parts), rules["normalizer"])
    ordinary = _with_borders_of(rules["pre_tokenizer"], ordinary)
    # [words]
    words, places = _split(tf.where(special, parts, ordinary))
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
    # [tokens]
    pairs, places = _split(pairs)
    ids, rows = tokenizer.token_to_id_map.lookup(pairs), tf.gather(rows, places)
    # A byte that the vocabulary lacks has no token.
    return _in_rows(tf.boolean_mask(ids, ids >= 0), tf.boolean_mask(rows, ids >= 0), texts)


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
    # [parts]
    parts, rows, special = _split_at_special(texts, rules["added_tokens"])
    ordinary = _normalized_by_bert(tf.where(special, "", parts), rules["normalizer"])
    ordinary = tf.strings.regex_replace(ordinary, f"[{WHITE}]+", BORDER)
    punctuation = f"([{_in_brackets('punctuation')}])"
    ordinary = tf.strings.regex_replace(ordinary, punctuation, BORDER + rb"\1" + BORDER)
    # [words]
    words, places = _split(tf.where(special, parts, ordinary))
    too_long = tf.strings.length(words, "UTF8_CHAR") > rules["model"]["max_input_chars_per_word"]
    pieces = pieces_of_words(tf.where(too_long, rules["model"]["unk_token"], words))
    return _in_rows(pieces.values, tf.gather(tf.gather(rows, places), pieces.value_rowids()), texts)


def sentence_piece_tokens(pieces_with_space, pieces, added_ids, rules, texts):
    """Tokenizes texts inside a graph.

    Args:
        pieces_with_space: function from texts `[parts]` to ragged ids, as the model's proto says.
        pieces: see `new_pieces`.
        added_ids: table from added tokens to their ids, -1 for others.
        rules: dictionary, a tokenizer.json.
        texts: string `[batch]`, UTF-8.

    Returns:
        Ragged int32 `[batch, (length)]`.

    Raises:
        ValueError: if graphs cannot follow the rules.
    """
    steps = [*_steps(rules["normalizer"]), *_steps(rules["pre_tokenizer"])]
    for step in steps:
        if step["type"] not in KNOWN:
            refuse("normalizer or pre_tokenizer", step)
    # [parts]
    parts, rows, special = _split_at_special(texts, rules["added_tokens"])
    ordinary = tf.where(special, "", parts)
    spaces = next((step for step in steps if step["type"] == "Metaspace"), None)
    at_white = {"type": "WhitespaceSplit"} in steps
    if at_white or (pieces is None and spaces and spaces.get("split", True)):
        # Texts have larger sums than words, which float32 rounds. The model deletes vertical tabs.
        white = WHITE.replace(r"\t-\r", r"\t\n\f\r") if at_white else " "
        words, places = _split(tf.strings.regex_replace(ordinary, f"[{white}]+", BORDER))
        tokens = pieces_with_space(words)
        tokens = _in_rows(tokens.values, tf.gather(places, tokens.value_rowids()), parts)
    elif pieces is None or not spaces:
        tokens = pieces_with_space(ordinary)
    else:
        first = tf.concat([[True], rows[1:] != rows[:-1]], 0)[: tf.size(rows)]
        with_space = {"always": True, "first": first, "never": False}[spaces["prepend_scheme"]]
        with_space &= ~tf.strings.regex_full_match(ordinary, f"([ {SPACE}](.|\n)*)?")
        tokens = pieces.tokenize(tf.where(with_space, SPACE + ordinary, ordinary))
    added = tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(added_ids.lookup(parts), special), tf.cast(special, tf.int64)
    )
    # [parts, (tokens)]
    tokens = tf.concat([added, tokens], axis=1)
    return _in_rows(tokens.values, tf.gather(rows, tokens.value_rowids()), texts)


def refuse(name, value):
    """Raises a ValueError for an entry of a tokenizer.json that graphs cannot follow."""
    raise ValueError(
        f"The {name} of the model's tokenizer works in Python, but not in a graph, such as that of "
        f"fit or of an exported model. Received: {name}={value!r}"
    )


# SentencePiece's models.


def added_pieces(proto):
    """Returns the tokens of a SentencePiece model, bytes, that are never parts of words."""
    kinds = 2, 3, 4  # That of unknown pieces, control tokens, and pieces that the user defined.
    return [piece.piece for piece in _model(proto).pieces if piece.type in kinds]


def with_round_scores(proto):
    """Returns a SentencePiece model whose sums of scores are exact, so that ties stay ties."""
    model = _model(proto)
    for piece in model.pieces:
        piece.score = round(piece.score * 2**14) / 2**14
    return model.SerializeToString()


def new_pieces(proto):
    """Returns SentencePiece's operation without a space before texts, None if it strips spaces."""
    import tensorflow_text

    model = _model(proto)
    if model.normalizer_spec.remove_extra_whitespaces:
        return None
    model.normalizer_spec.add_dummy_prefix = False
    return tensorflow_text.SentencepieceTokenizer(model.SerializeToString())


def _model(proto):
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(proto)


def _steps(entry):
    """Returns the steps of an entry of a tokenizer.json, which may be a sequence."""
    if entry is None or entry["type"] != "Sequence":
        return [entry] if entry else []
    inner = entry.get("normalizers") or entry.get("pretokenizers")
    return [step for part in inner for step in _steps(part)]


# Normalization.


def _normalized(texts, normalizer):
    if normalizer is None:
        return texts
    if normalizer["type"] not in ("NFC", "NFD", "NFKC", "NFKD"):
        refuse("normalizer", normalizer)
    import tensorflow_text

    return tensorflow_text.normalize_utf8(texts, normalizer["type"])


def _normalized_by_bert(texts, normalizer):
    replaced, lowercase = tf.strings.regex_replace, normalizer["lowercase"]
    if normalizer["clean_text"]:
        control = rf"[{_in_brackets('control')}\p{{Co}}]"
        texts = replaced(replaced(texts, r"[\t\n\r]", " "), control, "")
    if normalizer["handle_chinese_chars"]:
        texts = replaced(texts, CHINESE, r" \1 ")
    accents = normalizer["strip_accents"]
    if lowercase if accents is None else accents:
        import tensorflow_text

        apart = tensorflow_text.normalize_utf8(texts, "NFD")
        texts = replaced(apart, f"[{_in_brackets('marks')}]", "")
    # TensorFlow alone would write another sigma at the end of a word.
    return tf.strings.lower(replaced(texts, "Σ", "σ"), "utf-8") if lowercase else texts


# Borders, and splits at them.


def _split(texts):
    """Splits texts `[batch]` at borders.

    Returns:
        The parts that are not empty, `[parts]`, and the place of the text of each, `[parts]`.
    """
    parts = tf.raw_ops.StringSplitV2(input=texts, sep=BORDER)
    places = tf.where(parts.values != "")[:, 0]
    return tf.gather(parts.values, places), tf.gather(parts.indices[:, 0], places)


def _in_rows(values, rows, texts):
    """Returns ragged values, `[batch, (length)]`, given the row of each, of texts `[batch]`."""
    count = tf.shape(texts, tf.int64)[0]
    return tf.RaggedTensor.from_value_rowids(values, rows, count, validate=False)


def _split_at_special(texts, added_tokens):
    """Splits texts, UTF-8, `[batch]`, at the added tokens of a tokenizer.json.

    Returns:
        Parts, string `[parts]`, the place of the text of each, int64 `[parts]`, and whether it is
        an added token, bool `[parts]`.
    """
    replaced, names = tf.strings.regex_replace, {}
    valid = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8") == texts
    message = ["texts must be valid UTF-8. Received another at", tf.where(~valid)]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(valid), message)]):
        texts = tf.identity(texts)
    for token in added_tokens:
        if token["single_word"]:
            refuse("added token with single_word", token["content"])
        name = names[token["content"]] = re.escape(token["content"])
        if token["lstrip"]:
            texts = replaced(texts, f"[{WHITE}]+({name})", r"\1")
        if token["rstrip"]:
            texts = replaced(texts, f"({name})[{WHITE}]+", r"\1")
    if names:
        # The longest first, side by side with those that begin with the same letters.
        pattern = "|".join(names[name] for name in sorted(names, reverse=True))
        texts = replaced(texts, f"({pattern})", BORDER + SPECIAL + rb"\1" + BORDER)
    parts, rows = _split(texts)
    special = tf.strings.substr(parts, 0, 1) == SPECIAL
    return tf.where(special, tf.strings.substr(parts, 1, 2**30), parts), rows, special


def _with_borders_of(splits, texts):
    """Returns texts with the borders of an entry `pre_tokenizer` of a tokenizer.json."""
    kind = splits and splits["type"]
    if kind == "Sequence":
        for step in splits["pretokenizers"]:
            texts = _with_borders_of(step, texts)
        return texts
    if kind == "Digits":
        return _with_borders(texts, r"\p{N}" if splits["individual_digits"] else r"\p{N}+")
    if kind == "ByteLevel":
        if splits["add_prefix_space"]:
            parts, rows = _split(texts)
            spaces = tf.where(tf.strings.substr(parts, 0, 1) == " ", "", " ")
            parts = _in_rows(spaces + parts, rows, texts)
            texts = tf.strings.reduce_join(parts, axis=1, separator=BORDER)
        return _with_borders(texts, GPT2_PATTERN) if splits.get("use_regex", True) else texts
    # Patterns that match everything are kept by both.
    options = {name: splits.get(name) for name in KEEPING[0]} if splits else None
    if kind != "Split" or "Regex" not in splits["pattern"] or options not in KEEPING:
        refuse("pre_tokenizer", splits)
    return _with_borders(texts, splits["pattern"]["Regex"])


def _with_borders(texts, pattern):
    """Returns texts `[batch]` with borders around what a pattern of a tokenizer.json matches."""
    rest = pattern.replace(LOOKAHEAD, "")
    if FOREIGN.search(rest):
        refuse("pattern", pattern)
    if rest != pattern:
        # Newer patterns match new lines with all whitespace before them.
        white = WHITE.replace(r"\t-\r", r"\t\v\f") if r"\s*[\r\n]+" in rest else WHITE
        last = rf"([{white}])([^{WHITE}])"
        texts = tf.strings.regex_replace(texts, last, BORDER + rb"\1\2")
    in_or_out = rf"(\[(?:\\.|[^\]])*\])|({CLASS})"
    rest = re.sub(in_or_out, lambda match: match[1] or f"[{match[2]}]", rest)
    rest = re.sub(CLASS, lambda match: _in_brackets(match[0]), rest)
    return tf.strings.regex_replace(texts, f"({rest})", BORDER + rb"\1" + BORDER)


@functools.cache
def _in_brackets(name):
    """Returns the characters of a pattern's class, or a name in `OF_BERT`, for brackets."""
    remove = OF_BERT.get(name) or Replace(Regex(name), "").normalize_str
    others = remove(OTHER.join(CHARACTERS)).split(OTHER)
    runs = re.finditer("x+", "".join(" " if character else "x" for character in others))
    ends = ([ord(CHARACTERS[at]) for at in (run.start(), run.end() - 1)] for run in runs)
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ends)
