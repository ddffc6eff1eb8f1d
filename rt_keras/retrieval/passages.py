"""Documents cut into passages."""

import re

import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.tokenizer import batch_of_tokens
from rt_keras.layers.head_group import positive_int

# A word with the white space before it.
WORD = re.compile(r"\s*\S+")


def cut(document, tokenizer, length, overlap=0):
    """Cuts a document into passages of whole words.

    A passage is as long as it can be with at most `length` tokens, those of the title included, up
    to half of a passage. Words with more tokens, as in languages without spaces, are divided.
    Tokens are counted word by word.

    Args:
        document: dictionary of the strings "id", "title" and "text", as from
            `rt_keras.data.read_documents`.
        tokenizer: a tokenizer.
        length: int, maximum number of tokens in a passage.
        overlap: int, number of tokens that a passage repeats of the previous one, at most. Defaults
            to 0.

    Returns:
        A list of dictionaries of "document", the id; "title"; and "text", part of the document's
        text.

    Raises:
        ValueError: if `length` is not positive, or `overlap` is not from 0 to `length - 1`.

    >>> from rt_keras.data import ByteTokenizer
    >>> document = {"id": "1", "title": "", "text": "Once upon  a time"}
    >>> passages = cut(document, ByteTokenizer(), length=10, overlap=5)
    >>> [passage["text"] for passage in passages]
    ['Once upon', 'upon  a', 'a time']
    """
    check_lengths(length, overlap)
    text = document["text"]
    if not text.strip():
        return []
    # A line break follows the title; see `text_of`.
    title = document["title"] and document["title"] + "\n"
    length -= min(*_token_counts(tokenizer, [title]), length // 2)
    ends, counts = _words(text, tokenizer, length)
    starts, passages = [0, *ends], []
    for first, last in _ranges(counts, length, min(overlap, length - 1)):
        part = text[starts[first] : ends[last]].strip()
        passages.append({"document": document["id"], "title": document["title"], "text": part})
    return passages


def _words(text, tokenizer, length):
    """Returns where the words of a text end, and their numbers of tokens.

    Words with more than `length` tokens, white space aside, are halved until none is left.
    """
    ends = [word.end() for word in WORD.finditer(text)]
    while True:
        words = [text[start:end] for start, end in zip([0, *ends], ends)]
        counts = _token_counts(tokenizer, words)
        long = [(end, words[i].lstrip()) for i, end in enumerate(ends) if counts[i] > length]
        sizes = _token_counts(tokenizer, [word for _, word in long]) if long else []
        long = [x for x, size in zip(long, sizes) if size > length and len(x[1]) > 1]
        middles = [end - len(word) // 2 for end, word in long]
        if not middles:
            return ends, counts
        ends = sorted([*ends, *middles])


def _token_counts(tokenizer, texts):
    return batch_of_tokens(tokenizer(tf.constant(texts)))[0].row_lengths().numpy().tolist()


def check_lengths(length, overlap):
    """Raises a ValueError if the lengths of passages are out of range."""
    positive_int("length", length)
    if not 0 <= overlap < length:
        needed = f"from 0 to {length - 1}, below the length of a passage"
        raise wrong_value("overlap", needed, overlap)


def _ranges(counts, length, overlap):
    """Yields the first and the last word of each passage, given the tokens of each word."""
    first = 0
    while True:
        last, total = first, counts[first]
        while last + 1 < len(counts) and total + counts[last + 1] <= length:
            last += 1
            total += counts[last]
        yield first, last
        if last + 1 == len(counts):
            return
        start, repeated = last + 1, 0
        # The next passage begins with other words, so it must reach further than this one.
        while start - 1 > first and repeated + counts[start - 1] <= overlap:
            start -= 1
            repeated += counts[start]
        first = start if repeated + counts[last + 1] <= length else last + 1
