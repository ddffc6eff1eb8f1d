"""`rt-keras benchmark retrieval`: how often retrievers find the passage that answers a question."""

import itertools
import logging
import statistics
import time

from rt_keras import extras, progress
from rt_keras.benchmarks import machine
from rt_keras.options import add_integers, add_options, check_at_least_one, load_retriever
from rt_keras.tables import table

# Weights of a retriever's scores that are tried beside those of BM25.
WEIGHTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
NUMBERS = {
    "recall_at_1": ".3f",
    "recall_at_5": ".3f",
    "recall_at_20": ".3f",
    "mean_reciprocal_rank": ".3f",
    "passages_per_second": ",.0f",
    "seconds_per_question": ".4f",
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Ranks passages for test questions by BM25, by retrievers, and by both: the sum of "
        "their scores, with the weight that is best on validation questions."
    )
    parser.epilog = (
        "example: rt-keras benchmark retrieval --data packages --retrievers runs/retriever minilm "
        "--json retrieval.json"
    )
    add_options(parser, {"--data DIR": "a folder of questions with passages"}, required=True)
    meaning = "folders of retrievers: of runs, or of presets as rt-keras adapt writes"
    add_options(parser, {"--retrievers DIR": meaning}, nargs="+", default=[])
    numbers = {
        "passages": (
            10000,
            "number of passages; those of test questions, then of validation, then "
            "of training, which a retriever may know",
        ),
        "questions": (1000, "maximum number of test questions"),
    }
    add_integers(parser, numbers)


def main(args):
    """Prints a table of the retrievers.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each row.
    """
    check_at_least_one(args, "passages", "questions")
    tests, tuning, passages = read(args.data, args.questions, args.passages)
    if not tests:
        raise ValueError(f"--data {args.data} has no test questions with passages or answers")
    print(f"{len(tests):,} questions, {len(passages):,} passages")
    (words, tuning_words), figures = _bm25(tests, tuning, passages)
    rows = [{"retriever": "BM25", **scores_of(words, tests), **figures}]
    for folder in args.retrievers:
        (found, tuning_found), figures = _retriever(folder, tests, tuning, passages)
        rows.append({"retriever": folder, **scores_of(found, tests), **figures})
        weight = best_weight(tuning_words, tuning_found, tuning)
        together = scores_of(words + weight * found, tests)
        rows.append({"retriever": f"{folder} and BM25", **together, "weight": weight})
    lines = [[row["retriever"], *map(row.get, NUMBERS)] for row in rows]
    headings = {name.replace("_", " "): spec for name, spec in NUMBERS.items()}
    print(table({"retriever": "", **headings}, lines))
    return {"machine": machine.describe(), "passages": len(passages), "figures": rows}


def read(folder, num_questions, num_passages):
    """Reads questions and passages.

    Args:
        folder: path of a folder of `QuestionFolder`.
        num_questions: int, maximum number of questions of a split.
        num_passages: int, maximum number of passages, those of the test questions first.

    Returns:
        The test questions, the validation questions whose passages are among the passages, both
        dictionaries from a question to the number of its right passage; and the passages, a list of
        strings.
    """
    from rt_keras.data import load_question_answers
    from rt_keras.data.question_passages import retrieval_pairs

    def pairs(split):
        examples = retrieval_pairs(load_question_answers("question_folder", split, folder))
        for pair in examples.as_numpy_iterator():
            yield pair["question"].decode(), pair["passages"][0].decode()

    tests = list(itertools.islice(pairs("test"), num_questions))
    passages = dict.fromkeys(passage for _, passage in tests)
    for _, passage in itertools.chain.from_iterable(map(pairs, ("test", "validation", "train"))):
        if len(passages) >= num_passages:
            break
        passages.setdefault(passage)
    numbers = {passage: number for number, passage in enumerate(passages)}
    tuning = [pair for pair in pairs("validation") if pair[1] in numbers][:num_questions]
    tests, tuning = ({question: numbers[x] for question, x in some} for some in (tests, tuning))
    return tests, tuning, list(passages)


def scores_of(scores, questions):
    """Computes the scores of a retriever.

    Args:
        scores: float array `[questions, passages]`.
        questions: dictionary from a question to the number of its right passage.

    Returns:
        A dictionary of floats; see `rt_keras.training.tasks.retriever.scores_of_ranks`.
    """
    from rt_keras.training.tasks.retriever import ranks_of, scores_of_ranks

    return scores_of_ranks(ranks_of(scores, list(questions.values())))


def best_weight(words, found, questions):
    """Returns the weight of a retriever's scores beside those of BM25 that ranks best.

    Args:
        words, found: float arrays `[questions, passages]`, the scores of BM25 and of the retriever.
        questions: see `scores_of`. Without any, the weight is 1.

    Source: Karpukhin et al. 2020, Dense Passage Retrieval, section 5.1.
    """
    if not questions:
        return 1.0

    def rank(weight):
        return scores_of(words + weight * found, questions)["mean_reciprocal_rank"]

    return max(WEIGHTS, key=rank)


def bm25(passages, stopwords="english"):
    """Makes an index of passages for BM25.

    Args:
        passages: list of strings.
        stopwords: "english", to ignore its most frequent words, or None. Defaults to "english".

    Returns:
        A function from a list of questions to their scores, float32 `[questions, passages]`.
    """
    with extras.needed("retrieval", "Ranking by BM25"):
        import bm25s
    import numpy as np

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    options = {"stopwords": stopwords, "show_progress": False}
    words = bm25s.tokenize(passages, **options)
    none = np.zeros(len(passages), np.float32)
    # bm25s fails for texts without a word.
    if not words.vocab:
        return lambda questions: np.stack([none for _ in questions])
    index = bm25s.BM25()
    index.index(words, show_progress=False)

    def scores(questions):
        rows = bm25s.tokenize(questions, return_ids=False, **options)
        return np.stack([index.get_scores(row) if row else none for row in rows])

    return scores


def _bm25(tests, tuning, passages):
    """Returns the scores of BM25 for both sets of questions, and its speeds."""
    start = time.perf_counter()
    scores = bm25(passages)
    built = time.perf_counter() - start
    start = time.perf_counter()
    found = scores(list(tests))
    seconds = (time.perf_counter() - start) / len(tests)
    figures = {"passages_per_second": len(passages) / built, "seconds_per_question": seconds}
    return (found, scores(list(tuning)) if tuning else None), figures


def _retriever(folder, tests, tuning, passages):
    """Returns the scores of a retriever for both sets of questions, and its figures."""
    from rt_keras.retrieval import ExactIndex

    retriever = load_retriever("--retrievers", folder)
    with progress.bar(f"embedding with {folder}"):
        # Compiled before the time is taken.
        retriever.embed_texts(passages[:32])
        start = time.perf_counter()
        vectors = retriever.embed_texts(passages, verbose=1)
        built = time.perf_counter() - start
    found, tuned = (
        retriever.embed_texts(list(x), retriever.question_length) @ vectors.T
        for x in (tests, tuning)
    )
    index = ExactIndex(vectors)
    times = [_time_of_question(retriever, index, x) for x in list(tests)[:20]]
    figures = {
        "passages_per_second": len(passages) / built,
        "seconds_per_question": statistics.median(times),
        "weights": retriever.count_params(),
        "passage_length": retriever.preprocessor.sequence_length,
    }
    return (found, tuned), figures


def _time_of_question(retriever, index, question):
    start = time.perf_counter()
    index.search(retriever.embed_texts([question], retriever.question_length), 7)[1].numpy()
    return time.perf_counter() - start
