"""`rt-keras benchmark retrieval`: how often retrievers find the passage that answers a question."""

import itertools
import logging
import statistics
import time

from rt_keras import extras, progress
from rt_keras.benchmarks import machine
from rt_keras.options import add_integers, add_options, check_at_least_one, load_model
from rt_keras.tables import table

# Constant of reciprocal rank fusion, and the number of passages of each ranking that it reads.
FUSION, FUSED = 60, 100
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
        "Ranks the passages of test questions, and other passages that were not in training, by "
        "BM25, by retrievers, and by both together with reciprocal rank fusion."
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
    questions, passages, right = read(args.data, args.questions, args.passages)
    print(f"{len(questions):,} questions, {len(passages):,} passages")
    by_words, figures = bm25(questions, passages, FUSED)
    rows = [{"retriever": "BM25", **_scores(by_words, right), **figures}]
    for folder in args.retrievers:
        ranking, figures = _ranked(folder, questions, passages)
        rows.append({"retriever": folder, **_scores(ranking, right), **figures})
        together = fused([by_words, ranking])
        rows.append({"retriever": f"{folder} and BM25", **_scores(together, right)})
    lines = [
        [row["retriever"], *(format(row[x], y) if x in row else "-" for x, y in NUMBERS.items())]
        for row in rows
    ]
    print(table({"retriever": "", **{x.replace("_", " "): ">" for x in NUMBERS}}, lines))
    return {"machine": machine.describe(), "passages": len(passages), "figures": rows}


def read(folder, num_questions, num_passages):
    """Reads test questions and passages.

    Args:
        folder: path of a folder of `QuestionFolder`.
        num_questions: int, maximum number of questions.
        num_passages: int, maximum number of passages.

    Returns:
        The questions and the passages, lists of strings, and the number of the right passage of
        each question.
    """
    from rt_keras.data import load_question_answers
    from rt_keras.data.question_passages import retrieval_pairs

    def pairs(split):
        examples = retrieval_pairs(load_question_answers("question_folder", split, folder))
        for pair in examples.as_numpy_iterator():
            yield pair["question"].decode(), pair["passages"][0].decode()

    tests = list(itertools.islice(pairs("test"), num_questions))
    others = itertools.chain.from_iterable(map(pairs, ("test", "validation", "train")))
    passages = dict.fromkeys(passage for _, passage in tests)
    for _, passage in others:
        if len(passages) >= num_passages:
            break
        passages.setdefault(passage)
    numbers = {passage: number for number, passage in enumerate(passages)}
    questions = [question for question, _ in tests]
    return questions, list(passages), [numbers[passage] for _, passage in tests]


def fused(rankings):
    """Joins rankings by reciprocal rank fusion: the sum over rankings of 1 / (60 + rank).

    Args:
        rankings: list of int arrays `[questions, passages]`, each the numbers of the passages of a
            question, the best first.

    Returns:
        A list of int arrays, one for each question.

    Source: Cormack et al. 2009, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank
    Learning Methods.

    >>> import numpy as np
    >>> found = fused([np.array([[0, 1, 2]]), np.array([[1, 0, 3]]), np.array([[1, 2, 0]])])
    >>> found[0].tolist()
    [1, 0, 2, 3]
    """
    import numpy as np

    found = []
    for rows in zip(*rankings):
        scores = {}
        for row in rows:
            for rank, number in enumerate(row[:FUSED].tolist(), start=1):
                scores[number] = scores.get(number, 0.0) + 1 / (FUSION + rank)
        found.append(np.array(sorted(scores, key=lambda number: -scores[number])))
    return found


def _scores(rankings, right):
    """Returns the scores of rankings; a passage that is not ranked counts as never found."""
    import numpy as np

    from rt_keras.training.tasks.retriever import scores_of_ranks

    ranks = []
    for ranking, number in zip(rankings, right):
        places = np.flatnonzero(np.asarray(ranking) == number)
        ranks.append(1 + places[0] if len(places) else np.inf)
    return scores_of_ranks(np.array(ranks))


def bm25(questions, passages, count, stopwords="english"):
    """Ranks passages by BM25.

    Args:
        questions, passages: lists of strings.
        count: int, number of passages to find for each question.
        stopwords: "english", to ignore its most frequent words, or None. Defaults to "english".

    Returns:
        The numbers of the passages, int array `[questions, count]`, the best first; and a
        dictionary of the speeds.
    """
    with extras.needed("retrieval", "Ranking by BM25"):
        import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    options = {"stopwords": stopwords, "show_progress": False}
    start = time.perf_counter()
    index = bm25s.BM25()
    index.index(bm25s.tokenize(passages, **options), show_progress=False)
    built = time.perf_counter() - start
    tokens = bm25s.tokenize(questions, **options)
    start = time.perf_counter()
    found, _ = index.retrieve(tokens, k=min(count, len(passages)), show_progress=False, n_threads=1)
    seconds = (time.perf_counter() - start) / len(questions)
    speed = len(passages) / built
    return found, {"passages_per_second": speed, "seconds_per_question": seconds}


def _ranked(folder, questions, passages):
    """Ranks passages by the retriever of a folder."""
    import numpy as np

    from rt_keras.retrieval import ExactIndex

    retriever, task = load_model(folder)
    if task.generates != "embedding":
        raise ValueError(f"--retrievers {folder} holds a {task.kind} model, not a retriever")
    with progress.bar(f"embedding with {folder}"):
        # Compiled before the time is taken.
        retriever.embed_texts(passages[:32])
        start = time.perf_counter()
        index = ExactIndex(retriever.embed_texts(passages, verbose=1))
        built = time.perf_counter() - start
    queries = retriever.embed_texts(questions, retriever.question_length)
    rankings = [index.search(rows, FUSED)[1].numpy() for rows in np.array_split(queries, 10)]
    seconds = statistics.median(_time_of_question(retriever, index, x) for x in questions[:20])
    figures = {
        "passages_per_second": len(passages) / built,
        "seconds_per_question": seconds,
        "weights": retriever.count_params(),
        "passage_length": retriever.preprocessor.sequence_length,
    }
    return np.concatenate(rankings), figures


def _time_of_question(retriever, index, question):
    start = time.perf_counter()
    index.search(retriever.embed_texts([question], retriever.question_length), 7)[1].numpy()
    return time.perf_counter() - start
