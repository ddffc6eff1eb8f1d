"""Questions with the passages that an index finds for them."""

import collections
import json

from rt_keras import files
from rt_keras.data import progress
from rt_keras.data.document_source import text_of
from rt_keras.data.questions import SETS, as_strings, document_sets, load_question_answers

# Number of questions that are searched for at once.
QUESTIONS = 64


def retrieve(index, name, directory, output, num_passages, num_negatives=0, data_dir=None):
    """Writes a folder of questions with the passages that an index finds for them.

    Args:
        index: a `rt_keras.retrieval.Index`.
        name: string, the data set; see `rt_keras.data.load_question_answers`.
        directory: path of its folder.
        output: path of the new folder, which `QuestionFolder` reads.
        num_passages: int, number of "passages" of each question, the best first. 0 keeps its own.
        num_negatives: int, number of "negatives": the best passages of documents that do not answer
            the question. There are fewer only if the index has no others. Defaults to 0, which
            keeps its own.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        A dictionary of the number of questions of each split.

    Raises:
        FileExistsError: if `output` is not new or empty.
        ValueError: if neither passages nor negatives are requested, or a question is wrong.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rt_keras import data, layers, models
    >>> from rt_keras.retrieval import ExactIndex, Index
    >>> backbone = models.RoutingTransformerEncoderBackbone(
    ...     258, 1, 8, 16, [layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(data.ByteTokenizer(), 20)
    >>> retriever = models.RoutingTransformerTextEmbedder(backbone, preprocessor)
    >>> texts = ["blue sky", "deep sea"]
    >>> passages = [{"document": x, "title": "", "text": x} for x in texts]
    >>> index = Index(retriever, passages, ExactIndex(retriever.embed_texts(texts)))
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "test.jsonl").write_text('{"question": "deep sea"}')
    >>> retrieve(index, "question_folder", folder, folder / "found", 1, data_dir=folder)
    {'test': 1}
    >>> (folder / "found" / "test.jsonl").read_text()
    '{"answers": [], ..., "passages": ["deep sea"], "question": "deep sea"}\\n'
    """
    if num_passages < 0 or num_negatives < 0 or not num_passages + num_negatives:
        raise ValueError(
            "num_passages and num_negatives must be at least 0, and one of them above. Received: "
            f"{num_passages} and {num_negatives}"
        )
    counts, sizes = {}, collections.Counter(passage["document"] for passage in index.passages)
    with files.whole_folder(output) as part:
        for split in SETS.builder(name, directory, data_dir).files:
            lines = []
            for batch in _batches(name, split, directory, data_dir):
                # Among so many passages, there are enough of other documents.
                right = max(sum(sizes[x] for x in _documents(example)) for example in batch)
                number = max(num_passages, num_negatives and right + num_negatives)
                results = index.search([example["question"] for example in batch], number)
                for example, passages in zip(batch, results):
                    lines.append(_line(example, passages, num_passages, num_negatives))
            (part / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
            counts[split] = len(lines)
    return counts


def _batches(name, split, directory, data_dir):
    """Yields batches of questions with values that JSON can hold."""
    questions = load_question_answers(name, split, directory, data_dir)
    count = -(-int(questions.cardinality()) // QUESTIONS)
    ragged = questions.ragged_batch(QUESTIONS).as_numpy_iterator()
    for batch in progress.track(ragged, f"searching for {split}", count):
        yield [
            as_strings({name: values[row] for name, values in batch.items()})
            for row in range(len(batch["question"]))
        ]


def _documents(example):
    """Returns the set of all documents that answer a question."""
    return set().union(*document_sets(example["documents"]))


def _line(example, passages, num_passages, num_negatives):
    """Returns the JSON line of a question with the passages that were found for it."""
    right = _documents(example)
    wrong = [passage for passage in passages if passage["document"] not in right]
    if num_passages:
        example["passages"] = list(map(text_of, passages[:num_passages]))
    if num_negatives:
        example["negatives"] = list(map(text_of, wrong[:num_negatives]))
    return json.dumps(example, ensure_ascii=False) + "\n"
