"""Questions with long answers and passages, for retrievers and for models that read them."""

import warnings

import tensorflow as tf

from rt_keras.data.data_sets import DataSets, read

# No set is downloaded.
SETS = DataSets("question_folder or kilt", "(?!)", ("question_folder", "kilt"))


def load_question_answers(name, split, directory, data_dir=None):
    """Loads the questions of one split.

    Args:
        name: "question_folder" (the JSON lines of `directory`; see `QuestionFolder`), or "kilt" (a
            data set of KILT, such as ELI5, in `directory`; see `Kilt`).
        split: "train", "validation" or "test".
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        `tf.data.Dataset` of dictionaries, in a fixed order: "question", a scalar string, and
        "answers", "passages", "negatives" and "documents", strings `[any number]`.

    Raises:
        FileNotFoundError: if the folder or its files do not exist.
        ValueError: if there is no such set or split, or if a line of a file is wrong.

    Source: Fan et al. 2019, ELI5: Long Form Question Answering.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> line = '{"question": "why?", "answers": ["so"], "documents": ["sky.txt"]}'
    >>> _ = (folder / "test.jsonl").write_text(line)
    >>> questions = load_question_answers("question_folder", "test", folder, data_dir=folder)
    >>> for question in questions.as_numpy_iterator():
    ...     print(question["question"], question["answers"], question["documents"])
    b'why?' [b'so'] [b'sky.txt']
    """
    return read(SETS.prepared(name, directory, data_dir), split)


def as_strings(example):
    """Converts a question to values that JSON can hold.

    Args:
        example: dictionary of bytes and arrays of them, a question in NumPy.

    Returns:
        A dictionary of strings and lists of strings.

    >>> import numpy as np
    >>> as_strings({"question": b"why?", "answers": np.array([b"so"], object)})
    {'question': 'why?', 'answers': ['so']}
    """
    return {
        name: x.decode("utf-8") if isinstance(x, bytes) else [y.decode("utf-8") for y in x.tolist()]
        for name, x in example.items()
    }


def document_sets(documents):
    """Splits the documents of a question into the sets that suffice for an answer.

    Args:
        documents: list of strings, the feature "documents". Each holds an id, or several ids that
            are joined with tabs and needed together, or none.

    Returns:
        A list of sets of ids.

    >>> sets = document_sets(["sky.txt", "sun.txt\\tair.txt"])
    >>> [sorted(ids) for ids in sets]
    [['sky.txt'], ['air.txt', 'sun.txt']]
    """
    return [set(filter(None, ids.split("\t"))) for ids in documents]


STRING = tf.TensorSpec([], tf.string)


def retrieval_pairs(questions, num_negatives=0):
    """Keeps one right passage of each question, and passages that do not answer it.

    The right passage is the first of "passages" or, if there are none, of "answers"; those without
    text do not count. Questions with neither are left out, and their number is printed once.

    Args:
        questions: `tf.data.Dataset`, as from `load_question_answers`.
        num_negatives: int, number of "negatives" to keep. Defaults to 0.

    Returns:
        `tf.data.Dataset` of {"question", "passages"}, a string and strings `[1 + num_negatives]`,
        the right passage first.

    Raises:
        ValueError: while the data set is read, if a question has fewer negatives.

    >>> question = {"question": "why?", "answers": ["so"], "passages": [], "negatives": ["no"]}
    >>> questions = tf.data.Dataset.from_tensors({**question, "documents": []})
    >>> for pair in retrieval_pairs(questions, 1).as_numpy_iterator():
    ...     print(pair["passages"].tolist())
    [b'so', b'no']
    """

    def pair(example):
        right = [x for x in (*example["passages"], *example["answers"]) if x.strip()][:1]
        wrong = example["negatives"][:num_negatives]
        if len(wrong) < num_negatives:
            raise ValueError(
                f"each question must have at least {num_negatives} negatives. Received: "
                f"{len(wrong)} for {example['question'].decode()!r}"
            )
        return right and {"passages": [*right, *wrong]}

    specs = {"passages": tf.TensorSpec([1 + num_negatives], tf.string)}
    return _converted(questions, pair, specs, "no passage")


def reading_examples(questions, num_passages):
    """Keeps the best passages of each question, and its first answer.

    Questions without an answer are left out, and their number is printed once.

    Args:
        questions: `tf.data.Dataset`, as from `load_question_answers`.
        num_passages: int, number of passages to keep. Missing ones are empty.

    Returns:
        `tf.data.Dataset` of {"question", "passages", "answer"}: a string, strings `[num_passages]`
        and a string, the inputs of `RoutingTransformerReaderPreprocessor`.

    >>> question = {"question": "why?", "answers": ["so", "thus"], "passages": ["a"]}
    >>> questions = tf.data.Dataset.from_tensors({**question, "negatives": [], "documents": []})
    >>> for example in reading_examples(questions, 2).as_numpy_iterator():
    ...     print(example["passages"].tolist(), example["answer"])
    [b'a', b''] b'so'
    """

    def reading_example(example):
        passages = [*example["passages"], *[b""] * num_passages][:num_passages]
        answers = [answer for answer in example["answers"] if answer.strip()]
        return answers and {"passages": passages, "answer": answers[0]}

    specs = {"passages": tf.TensorSpec([num_passages], tf.string), "answer": STRING}
    return _converted(questions, reading_example, specs, "no answer")


def _converted(questions, convert, specs, problem):
    """Adds converted values to each question; leaves out those for which there are none."""

    def read():
        left_out = 0
        for example in questions.as_numpy_iterator():
            if values := convert(example):
                yield {"question": example["question"], **values}
            else:
                left_out += 1
        if left_out:
            warnings.warn(f"{left_out:,} questions have {problem} and are left out", stacklevel=2)

    specs = {"question": STRING, **specs}
    return tf.data.Dataset.from_generator(read, output_signature=specs)
