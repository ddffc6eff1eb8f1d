"""Questions with long answers and the documents that they are in, as in ELI5."""

from rt_keras.data.data_sets import DataSets

# No set is downloaded.
SETS = DataSets(
    "question_folder or kilt", "(?!)", folders={"question_folder": "QuestionFolder", "kilt": "Kilt"}
)

# Between the ids of the documents that an answer needs together.
SEPARATOR = "\t"


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
    from rt_keras.data import tfds_sets

    return tfds_sets.read(tfds_sets.prepare(SETS.builder(name, directory, data_dir)), split)


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
    return [set(filter(None, ids.split(SEPARATOR))) for ids in documents]
