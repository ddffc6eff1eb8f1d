"""`rt-keras benchmark answers`: answers of a reader, beside controls that need no understanding."""

from rt_keras import progress
from rt_keras.benchmarks import machine
from rt_keras.benchmarks.retrieval import bm25
from rt_keras.options import (
    add_integers,
    add_options,
    add_top_p,
    check_at_least_one,
    load_reader,
)
from rt_keras.tables import table

# What the reader reads.
READ = ("its passages", "random passages", "no passages")
# Score of two questions from which on one counts as a paraphrase of the other: the F1 of words.
PARAPHRASE = 0.6
NUMBERS = {
    "nats_per_token": ".3f",
    "rouge_l": ".3f",
    "f1": ".3f",
    "exact_match": ".3f",
    "r_precision": ".3f",
    "recall_at_5": ".3f",
    "kilt_rouge_l": ".3f",
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Scores a reader's answers to held-out questions by KILT's measures. The table also has "
        "the reader with random passages and with none, the question itself, a random answer and "
        "the longest answer of training. If these score as well, the passages did not help."
    )
    parser.epilog = (
        "example: rt-keras benchmark answers --model runs/reader --index index --data questions "
        "--json answers.json"
    )
    needed = {
        "--model DIR": "the folder of a run or of a preset of a reader",
        "--data DIR": "a folder of questions; without --index, with their passages",
    }
    add_options(parser, needed, required=True)
    meaning = "the folder of the index that finds the passages (default: those of the questions)"
    add_options(parser, {"--index DIR": meaning})
    meaning = "the split of the questions: validation or test (default: test)"
    add_options(parser, {"--split": meaning}, choices=("validation", "test"), default="test")
    numbers = {
        "questions": (1000, "maximum number of questions"),
        "answered": (50, "maximum number of questions for which answers are generated"),
        "batch_size": (8, "questions in a batch"),
        "seed": (0, "seed of what is drawn at random"),
    }
    add_integers(parser, numbers)
    add_top_p(parser, default=0.0)


def main(args):
    """Prints a table of the reader's answers and of controls.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each row.
    """
    check_at_least_one(args, "questions", "answered", "batch_size")
    reader = load_reader(args)
    training, tests = (_questions(args.data, split) for split in ("train", args.split))
    tests = tests[: args.questions]
    if len(tests) < 2:
        raise ValueError(
            "at least 2 questions with answers are needed, since random passages are those of "
            f"another. Received: {len(tests)} of the split {args.split} of {args.data}"
        )
    count = reader.preprocessor.num_passages
    found = _found(args, tests, count)
    # The documents count only where the reader has read their passages.
    given = zip(READ, _passages(tests, args.seed, count), (found, None, None))
    rows = [
        {"answer": f"reader, {name}", **_reader_row(reader, tests, passages, documents, args)}
        for name, passages, documents in given
    ]
    rows += _control_rows(training, tests[: args.answered], args.seed)
    copies = paraphrases([x["question"] for x in tests], [x["question"] for x in training])
    _print(rows)
    print(f"{copies:.1%} of {len(tests):,} questions have a paraphrase in training")
    return {"machine": machine.describe(), "paraphrases": copies, "figures": rows}


def _questions(folder, split):
    """Returns the questions of a split with their answers that are not blank, if they have any."""
    from rt_keras.data import load_question_answers
    from rt_keras.data.question_answers import as_strings

    examples = load_question_answers("question_folder", split, folder).as_numpy_iterator()
    decoded = [as_strings(example) for example in examples]
    for example in decoded:
        example["answers"] = [answer for answer in example["answers"] if answer.strip()]
    return [example for example in decoded if example["answers"]]


def _found(args, tests, count):
    """Gives questions the passages of the index; returns the ids of their documents, or None."""
    from rt_keras.data.document_source import text_of
    from rt_keras.retrieval import read_index

    if args.index is None:
        return None
    index = read_index(args.index)
    found = index.search([test["question"] for test in tests], max(count, 5))
    for test, passages in zip(tests, found):
        test["passages"] = [text_of(passage) for passage in passages[:count]]
    return [[passage["document"] for passage in passages] for passages in found]


def _passages(tests, seed, count):
    """Returns the passages of questions, those of other questions, and none; see `READ`.

    Missing passages are empty.
    """
    import numpy as np

    own = [(test["passages"] + [""] * count)[:count] for test in tests]
    shift = np.random.default_rng(seed).integers(1, len(tests))
    return own, [*own[shift:], *own[:shift]], [[""] * count for _ in tests]


def _reader_row(reader, tests, passages, found, args):
    """Returns the scores of a reader that reads some passages."""
    row = {"nats_per_token": _nats(reader, tests, passages, args.batch_size)}
    few = args.answered
    answers = _answers(reader, tests[:few], passages[:few], args.batch_size)
    return {**row, **scores(answers, tests[:few], found and found[:few])}


def _nats(reader, tests, passages, batch_size):
    """Returns the mean of -ln p over the tokens of the first answers."""
    import tensorflow as tf

    from rt_keras.training.evaluation import evaluate

    columns = {
        "question": [test["question"] for test in tests],
        "passages": passages,
        "answer": [test["answers"][0] for test in tests],
    }
    examples = tf.data.Dataset.from_tensor_slices(columns)
    return evaluate(reader, examples, batch_size)["nats_per_token"]


def _answers(reader, tests, passages, batch_size):
    """Generates the answers to questions."""
    answers = []
    starts = range(0, len(tests), batch_size)
    for start in progress.track(starts, "answering", len(starts), "batches"):
        rows = range(start, min(start + batch_size, len(tests)))
        questions = [reader.preprocessor.shortened(tests[row]["question"]) for row in rows]
        read = [passages[row] for row in rows]
        answers += reader.generate({"question": questions, "passages": read})
    return answers


def _control_rows(training, tests, seed):
    """Returns the scores of answers that no model gives."""
    import numpy as np

    answers = [example["answers"][0] for example in training]
    if not answers:
        return []
    chosen = np.random.default_rng(seed).choice(len(answers), len(tests))
    controls = {
        "the question": [test["question"] for test in tests],
        "a random training answer": [answers[number] for number in chosen],
        "the longest training answer": [max(answers, key=len)] * len(tests),
    }
    return [{"answer": name, **scores(given, tests)} for name, given in controls.items()]


def scores(answers, tests, found=None):
    """Computes the scores of KILT.

    Args:
        answers: list of strings, the answers to score.
        tests: list of questions, dictionaries with "answers" and "documents".
        found: list of lists of the ids of the documents that were found. Defaults to None, for the
            scores of answers alone.

    Returns:
        A dictionary of floats; see `rt_keras.training.kilt_scores.kilt_scores`.
    """
    from rt_keras.data.question_answers import document_sets
    from rt_keras.training.kilt_scores import kilt_scores

    references = [test["answers"] for test in tests]
    right = [document_sets(test["documents"]) for test in tests]
    computed = kilt_scores(answers, references, found or [[] for _ in tests], right)
    return computed if found else {x: computed[x] for x in ("rouge_l", "f1", "exact_match")}


def paraphrases(questions, others):
    """Returns the share of questions of which another question is a paraphrase.

    The other question is the best one by BM25, and counts as a paraphrase if the F1 of the words of
    both is at least 0.6.

    Args:
        questions, others: lists of strings.
    """
    import numpy as np

    from rt_keras.training.answers import score_answer

    if not others:
        return 0.0
    find = bm25(others, stopwords=None)
    alike = [
        score_answer(question, [others[find([question]).argmax()]])[1] >= PARAPHRASE
        for question in questions
    ]
    return float(np.mean(alike))


def _print(rows):
    kept = [name for name in NUMBERS if any(name in row for row in rows)]
    lines = [[row["answer"], *map(row.get, kept)] for row in rows]
    print(table({"answer": "", **{x.replace("_", " "): NUMBERS[x] for x in kept}}, lines))
