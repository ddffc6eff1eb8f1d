"""The scores of KILT: of long answers, and of the documents that were found for them."""

import contextlib
import sys

from rt_keras import extras
from rt_keras.data.batches import check_at_least_one
from rt_keras.training.answers import score_answer, words_of


def rouge_l(answer, references):
    """Computes the F score of ROUGE-L of an answer for the best reference, as KILT does.

    Words are what whitespace separates, and sentences end with "."; case and other punctuation
    count.

    Args:
        answer: string.
        references: list of strings, the reference answers.

    Returns:
        A float from 0 to 1, which is 0 if the answer or all references are empty. Equal texts have
        a score slightly below 1.

    Raises:
        ModuleNotFoundError: without the extra `retrieval`.

    Source: Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries, section 3.2; Petroni
    et al. 2021, KILT: a Benchmark for Knowledge Intensive Language Tasks.

    >>> round(rouge_l("it is blue", ["why", "the sky is blue"]), 6)
    0.571429
    """
    return max((_rouge_l(answer.strip(), text.strip()) for text in references), default=0.0)


def _rouge_l(answer, reference):
    with extras.needed("retrieval", "Scoring long answers"):
        from rouge import Rouge

    try:
        # For each word, rouge calls a function inside that of the next word.
        with _deeper(len(answer.split()) + len(reference.split())):
            scores = Rouge(metrics=["rouge-l"]).get_scores(answer, reference, avg=True)
    except ValueError:  # One of the two has no sentence.
        return 0.0
    return scores["rouge-l"]["f"]


@contextlib.contextmanager
def _deeper(calls):
    """Allows this number of calls inside each other beyond the limit of Python."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + calls)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def r_precision(found, right):
    """Computes the share of right documents among the first R that were found.

    R is the number of documents that an answer needs. If there are several such sets, the best
    score counts.

    Args:
        found: list of strings, the ids of the documents that were found, best first. Only the first
            of equal ids counts.
        right: list of sets of strings, the ids of the documents that each answer needs.

    Returns:
        A float from 0 to 1, which is 0 if there are no right documents.

    Raises:
        ValueError: if `right` is a list of ids.

    Source: Petroni et al. 2021, KILT: a Benchmark for Knowledge Intensive Language Tasks, section
    4.2.

    >>> r_precision(["sun", "sky", "air"], [{"sky", "sun"}])
    1.0
    >>> r_precision(["sun", "sky", "air"], [{"sky"}, {"air", "sun"}])
    0.5
    """
    _check_sets(right)
    found = list(dict.fromkeys(found))
    shares = (len(ids.intersection(found[: len(ids)])) / len(ids) for ids in map(set, right) if ids)
    return max(shares, default=0.0)


def recall_at_k(found, right, k):
    """Computes the share of sets of right documents that are complete after k places.

    The documents of a set take one place together, that of the last one found. Each other document
    takes one, and a document of several sets one for each.

    Args:
        found: list of strings, the ids of the documents that were found, best first. Only the first
            of equal ids counts.
        right: list of sets of strings, the ids of the documents that each answer needs. Only the
            first of equal sets counts, and an empty set is never found.
        k: int, at least 1.

    Returns:
        A float from 0 to 1, which is 0 if there are no right documents.

    Raises:
        ValueError: if `k` is less than 1, or if `right` is a list of ids.

    Source: Petroni et al. 2021, KILT: a Benchmark for Knowledge Intensive Language Tasks, section
    4.2.

    >>> recall_at_k(["sun", "sea", "sky"], [{"sky", "sun"}, {"air"}], k=2)
    0.5
    """
    check_at_least_one(k=k)
    _check_sets(right)
    missing = [set(ids) for ids in dict.fromkeys(map(frozenset, right))]
    # The numbers of sets, and None for each document that is in none.
    places = []
    for document in dict.fromkeys(found):
        numbers = [number for number, ids in enumerate(missing) if document in ids]
        for number in numbers:
            missing[number].remove(document)
        places = [x for x in places if x is None or x not in numbers] + (numbers or [None])
    complete = [number for number in places[:k] if number is not None and not missing[number]]
    return len(complete) / len(missing) if missing else 0.0


def _check_sets(right):
    if any(isinstance(ids, str) for ids in right):
        raise ValueError(f"right must be a list of sets of ids. Received: right={right!r}")


def kilt_scores(answers, references, found, right):
    """Computes the scores of KILT, each as the mean over questions.

    Args:
        answers: list of strings, one answer for each question.
        references: list of lists of strings, the reference answers of each question. Blank ones
            are ignored. The scores of a question without any are 0.
        found: list of lists of strings, the ids of the documents that were found for each question,
            best first.
        right: list of lists of sets of strings, the ids of the documents that each answer to the
            question needs, as from `document_sets`.

    Returns:
        A dictionary of floats from 0 to 1: "rouge_l", "f1" and "exact_match" of the answers;
        "r_precision" and "recall_at_5" of the documents; "kilt_rouge_l" and "kilt_f1", in which an
        answer counts only if its R-precision is 1.

    Raises:
        ValueError: if there are no questions, if the lists differ in their lengths, or if an item
            of `right` is a list of ids.
        ModuleNotFoundError: without the extra `retrieval`.

    Source: Petroni et al. 2021, KILT: a Benchmark for Knowledge Intensive Language Tasks, section
    4.

    >>> scores = kilt_scores(
    ...     ["the sky", "air"], [["sky"], ["air"]], [["12"], ["7"]], [[{"12"}], [{"8"}]]
    ... )
    >>> scores["f1"], scores["r_precision"], scores["kilt_f1"]
    (1.0, 0.5, 0.5)
    """
    lists = {"answers": answers, "references": references, "found": found, "right": right}
    counts = {name: len(values) for name, values in lists.items()}
    if not answers or len(set(counts.values())) > 1:
        raise ValueError(
            "answers, references, found and right must have one item for each question, and there "
            f"must be a question. Received: {counts}"
        )
    rows = [_scores(*row) for row in zip(*lists.values())]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _scores(answer, references, found, right):
    scores = _scores_of_answer(answer, [text for text in references if text.strip()])
    precision = r_precision(found, right)
    of_documents = {"r_precision": precision, "recall_at_5": recall_at_k(found, right, 5)}
    names = ("rouge_l", "f1")
    both = {f"kilt_{name}": scores[name] if precision == 1 else 0.0 for name in names}
    return {**scores, **of_documents, **both}


def _scores_of_answer(answer, references):
    if not answer.strip() or not references:
        return dict.fromkeys(("rouge_l", "f1", "exact_match"), 0.0)
    exact_match, f1 = score_answer(answer, references)
    # Unlike SQuAD, KILT has an F1 of 0 for answers of only articles and punctuation.
    f1 = f1 if words_of(answer) else 0.0
    return {"rouge_l": rouge_l(answer, references), "f1": f1, "exact_match": exact_match}
