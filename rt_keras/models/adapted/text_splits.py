"""Texts split inside graphs as the `tokenizers` package splits them in Python.

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


def refuse(name, value):
    """Raises a ValueError for an entry of a tokenizer.json that graphs cannot follow."""
    raise ValueError(
        f"The {name} of the model's tokenizer works in Python, but not in a graph, such as that of "
        f"fit or of an exported model. Received: {name}={value!r}"
    )


@functools.cache
def in_brackets(name):
    """Returns the characters of a pattern's class, or a name in `OF_BERT`, for brackets."""
    remove = OF_BERT.get(name) or Replace(Regex(name), "").normalize_str
    kept = remove(OTHER.join(CHARACTERS)).split(OTHER)
    runs = re.finditer("x+", "".join(" " if left else "x" for left in kept))
    ends = ([ord(CHARACTERS[at]) for at in (run.start(), run.end() - 1)] for run in runs)
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ends)


def split(texts, border=BORDER):
    """Returns the parts of texts that are not empty, `[parts]`, and the place of the text of each.

    Args:
        texts: string `[batch]`.
        border: string between parts.
    """
    found = tf.raw_ops.StringSplitV2(input=texts, sep=border)
    kept = tf.where(found.values != "")[:, 0]
    return tf.gather(found.values, kept), tf.gather(found.indices[:, 0], kept)


def split_at_special(texts, added_tokens):
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
    parts, rows = split(texts)
    special = tf.strings.substr(parts, 0, 1) == SPECIAL
    return tf.where(special, tf.strings.substr(parts, 1, 2**30), parts), rows, special


def with_borders(texts, pattern):
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
    rest = re.sub(in_or_out, lambda found: found[1] or f"[{found[2]}]", rest)
    rest = re.sub(CLASS, lambda found: in_brackets(found[0]), rest)
    return tf.strings.regex_replace(texts, f"({rest})", BORDER + rb"\1" + BORDER)
