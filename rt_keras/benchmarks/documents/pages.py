"""Pages in two languages as tokens, their parts, and the words in them that come again.

Paragraphs are separated by empty lines, and the n-th paragraph of the target translates the n-th of
the source.
"""

import collections
import math

import numpy as np

from rt_keras.data.pairs import load_pairs

# A word in at most this share of the training pages is a term.
TERM_SHARE = 0.02


def read_pages(directory, split, tokenizer, length):
    """Reads the pages of a split as tokens.

    Args:
        directory: path of the folder; see `rt_keras.data.parallel_documents.ParallelDocuments`.
        split: "train", "validation" or "test".
        tokenizer: a tokenizer of `rt_keras.data` in which a line break is a token.
        length: int, maximum number of tokens. Paragraphs from the first that does not fit on, and
            those without a counterpart, are left out.

    Returns:
        A list of pages, each a list of pairs `(source, target)` of paragraphs, lists of tokens.
    """
    pairs = load_pairs("parallel_documents", split, directory).as_numpy_iterator()
    line_break = int(tokenizer("x\n")[-1])
    pages = [_page(pair, tokenizer, line_break, length) for pair in pairs]
    return [page for page in pages if page]


def _page(pair, tokenizer, line_break, length):
    sides = [
        paragraphs(list(map(int, tokenizer(pair[name].decode()))), line_break)
        for name in ("encoder_text", "decoder_text")
    ]
    page, sizes = [], [0, 0]
    for paragraph in zip(*sides):
        sizes = [size + len(side) for size, side in zip(sizes, paragraph)]
        if max(sizes) > length:
            break
        page.append(paragraph)
    return page


def paragraphs(tokens, line_break):
    """Splits tokens after each run of at least two line breaks.

    >>> paragraphs([1, 0, 2, 0, 0, 3], line_break=0)
    [[1, 0, 2, 0, 0], [3]]
    """
    found, breaks = [[]], 0
    for token in tokens:
        if breaks > 1 and token != line_break:
            found.append([])
        breaks = breaks + 1 if token == line_break else 0
        found[-1].append(token)
    return found


def joined(page):
    """Returns a page's tokens as a pair `(source, target)`."""
    return tuple([token for part in side for token in part] for side in zip(*page))


def parts_of(page, length):
    """Joins the paragraphs of a page to parts of at most `length` tokens on either side.

    Longer paragraphs are cut into equally many pieces on both sides.

    >>> parts_of([([1, 2], [3]), ([4], [5, 6]), ([7] * 4, [8, 9])], length=3)
    [([1, 2, 4], [3, 5, 6]), ([7, 7], [8]), ([7, 7], [9])]
    """
    parts = []
    for paragraph in page:
        for piece in _pieces(paragraph, length):
            last = parts[-1] if parts else None
            if last and all(len(a) + len(b) <= length for a, b in zip(last, piece)):
                parts[-1] = tuple(a + b for a, b in zip(last, piece))
            else:
                parts.append(piece)
    return parts


def _pieces(paragraph, length):
    count = math.ceil(max(map(len, paragraph)) / length)
    bounds = [[len(side) * i // count for i in range(count + 1)] for side in paragraph]
    return [
        tuple(side[b[i] : b[i + 1]] for side, b in zip(paragraph, bounds)) for i in range(count)
    ]


def words_of(tokens, starts):
    """Returns the words of a text, each a pair of the place of its first token and its tokens.

    Args:
        tokens: list of ints.
        starts: bool array `[vocabulary_size]`, whether a token begins a word.

    >>> words_of([5, 1, 6], np.arange(9) > 4)
    [(0, (5, 1)), (2, (6,))]
    """
    bounds = [i for i, token in enumerate(tokens) if i == 0 or starts[token]] + [len(tokens)]
    return [(a, tuple(tokens[a:b])) for a, b in zip(bounds, bounds[1:])]


def word_starts(tokenizer):
    """Returns which tokens of a SentencePiece tokenizer begin a word: spaces and line breaks."""
    return np.array([token[:1] in ("▁", "\n") for token in tokenizer.get_vocabulary()])


def common_words(pages, starts):
    """Returns the set of words in more than `TERM_SHARE` of the pages' targets."""
    counts = collections.Counter()
    for page in pages:
        counts.update({word for _, word in words_of(joined(page)[1], starts)})
    return {word for word, count in counts.items() if count > TERM_SHARE * len(pages)}


def repetition(tokens, starts, common):
    """Returns for each token how far back its term occurred last.

    Args:
        tokens: list of ints, the target of a page.
        starts: bool array as from `word_starts`.
        common: set of words that are no terms.

    Returns:
        int array `[length]`: the distance in tokens, 0 for a term that is new in the page, and -1
        for a word that is no term.

    >>> repetition([5, 1, 6, 5, 1], np.arange(9) > 4, common={(6,)}).tolist()
    [0, 0, -1, 3, 3]
    """
    distances, last = np.full(len(tokens), -1), {}
    for place, word in words_of(tokens, starts):
        if word not in common:
            distances[place : place + len(word)] = place - last.get(word, place)
            last[word] = place
    return distances
