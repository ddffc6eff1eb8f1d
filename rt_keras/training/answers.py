"""Exact match and F1 of answers, as in SQuAD."""

import collections
import re
import string

PUNCTUATION = str.maketrans("", "", string.punctuation)


def words_of(answer):
    """Splits an answer into words in lower case, without punctuation and articles.

    Args:
        answer: string.

    Returns:
        A list of strings.

    >>> words_of("The  U.S. Army, an army")
    ['us', 'army', 'army']
    """
    return re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(PUNCTUATION)).split()


def score_answer(answer, references):
    """Computes the exact match and the F1 of an answer, each for the best reference.

    Args:
        answer: string.
        references: list of strings, the reference answers.

    Returns:
        Two floats: 1 if the words equal those of a reference, else 0; and the F1 score, the
        harmonic mean of precision and recall of the words, from 0 to 1.

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
    # Two answers without words agree.
    return 2 * common / (len(found) + len(wanted)) if found or wanted else 1.0
