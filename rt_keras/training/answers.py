"""How well answers agree with those that people gave, as SQuAD measures it."""

import collections
import re
import string

PUNCTUATION = str.maketrans("", "", string.punctuation)


def words_of(answer):
    """The words that count: in lower case, without punctuation and articles.

    Args:
        answer: string.

    Returns:
        A list of strings.

    >>> words_of("The  U.S. Army, an army")
    ['us', 'army', 'army']
    """
    return re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(PUNCTUATION)).split()


def score_answer(answer, references):
    """The exact match and the F1 of an answer, with the reference that suits it best.

    Args:
        answer: string.
        references: list of strings, the answers that people gave.

    Returns:
        Two floats from 0 to 1: whether the words are those of a reference; and the harmonic mean of
        the share of words that are in a reference, and the share of its words that are found.

    Source: Rajpurkar et al. 2016, SQuAD, section 6.1.

    >>> score_answer("Normandy, in France", ["Normandy", "the north"])
    (0.0, 0.5)
    >>> score_answer("The North!", ["Normandy", "the north"])
    (1.0, 1.0)
    """
    found = words_of(answer)
    wanted = [words_of(reference) for reference in references]
    return float(found in wanted), max(_f1(found, words) for words in wanted)


def _f1(found, wanted):
    common = sum((collections.Counter(found) & collections.Counter(wanted)).values())
    # Of two answers without words, both agree.
    return 2 * common / (len(found) + len(wanted)) if found or wanted else 1.0
