"""The folder of an index: its passages, their embeddings and the retriever that made them."""

import functools
import hashlib
import itertools
import json
import warnings
from pathlib import Path

import keras
import numpy as np

from rt_keras import files
from rt_keras.arguments import wrong_value
from rt_keras.data import progress, shards
from rt_keras.data.document_source import read_documents, text_of
from rt_keras.data.file_reading import list_files
from rt_keras.retrieval.exact_index import ExactIndex
from rt_keras.retrieval.passages import check_lengths, cut
from rt_keras.training.experiment import load_model
from rt_keras.training.saved_tasks import write_task

# Bytes of embeddings and text per file. An interrupted build loses at most one file.
SHARD_BYTES = 2**23
RETRIEVER = "retriever"
# Number of passages that are embedded at a time, several batches.
PASSAGES_AT_ONCE = 512
# Keys of configurations that do not identify a retriever.
CHANGEABLE = ("name", "dtype", "trainable", "module", "registered_name", "preprocessor")


def build_index(documents, retriever, folder, length=None, overlap=0):
    """Cuts documents into passages, embeds them, and writes them to a folder.

    An interrupted build resumes where it stopped, and a complete index is left unchanged. If
    another process builds in the same folder, this one waits for it.

    Args:
        documents: path of a folder of texts or a file of JSON lines; see
            `rt_keras.data.read_documents`. All are read once before the first is embedded, to find
            mistakes in them.
        retriever: a text embedder with a preprocessor, such as a `RoutingTransformerTextEmbedder`.
        folder: string or `Path`, the folder to write to or to resume in, not in that of the
            documents. It gets a copy of the retriever.
        length: int, maximum number of tokens in a passage. Defaults to the length of the
            retriever's sequences without start and end.
        overlap: int, maximum number of tokens that a passage repeats of the previous one. Defaults
            to 0.

    Returns:
        The `Path` of the folder.

    Raises:
        FileNotFoundError: if there are no documents.
        ValueError: if the folder holds an index of another retriever, of other documents or of
            other lengths, if the retriever has no preprocessor or low-rank updates that are not
            merged, if a passage would be longer than the retriever's sequences, if no document has
            text, if two have the same id, if one cannot be read, or if an embedding is not finite.
        OSError: if the disk is full.

    Example:

    >>> import tempfile
    >>> from rt_keras import data, layers, models
    >>> folder, index = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    >>> _ = (folder / "sky.txt").write_text("The sky is blue. The sea is deep.")
    >>> backbone = models.RoutingTransformerEncoderBackbone(
    ...     258, 1, 8, 16, [layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(data.ByteTokenizer(), 20)
    >>> retriever = models.RoutingTransformerTextEmbedder(backbone, preprocessor)
    >>> index = read_index(build_index(folder, retriever, index))
    >>> len(index.passages), index.search(["deep sea"], k=1)[0][0]["document"]
    (3, 'sky.txt')
    """
    folder, preprocessor = Path(folder), retriever.preprocessor
    if preprocessor is None:
        raise ValueError("retriever must have a preprocessor")
    if any(weight.name.startswith("lora_") for weight in retriever.weights):
        # Saving adds them to the other weights, so the copy would be another retriever.
        raise ValueError("retriever must have no low-rank updates; save it and load it again")
    longest = preprocessor.sequence_length - 2
    length = longest if length is None else length
    check_lengths(length, overlap)
    if length > longest:
        needed = f"at most {longest}, the tokens that the retriever sees of a passage"
        raise wrong_value("length", needed, length)
    contents = {
        "unit": "passages",
        "retriever": sum_of_retriever(retriever),
        "documents": _source(documents),
        "length": length,
        "overlap": overlap,
        "features": retriever.output_shape[-1],
    }
    if Path(documents).resolve() in folder.resolve().parents:
        # Its vocabulary may be a .txt file.
        raise wrong_value("folder", "outside of the documents", str(folder))

    def read(first):
        texts, options = read_documents(documents), (preprocessor.tokenizer, length, overlap)
        passages = (passage for document in texts for passage in cut(document, *options))
        # In the batches of an uninterrupted build, whose embeddings may be rounded otherwise.
        start = first - first % PASSAGES_AT_ONCE
        records = _records(retriever, itertools.islice(passages, start, None))
        return itertools.islice(records, first - start, None)

    if not (folder / shards.MANIFEST).exists():
        _check_documents(documents)
    save = functools.partial(_save, features=contents["features"])
    shards.write(folder, contents, read, save, ".npz", SHARD_BYTES)
    with files.locked(folder, wait=True):
        if not (folder / RETRIEVER).is_dir():
            write_task(retriever, folder / RETRIEVER)
    return folder


def _check_documents(documents):
    """Reads all documents, since a mistake in the last one would otherwise be found last."""
    empty, seen = [], set()
    for document in progress.track(read_documents(documents, empty), "reading"):
        if document["id"] in seen:
            raise ValueError(f"documents has two with the id {document['id']!r}")
        seen.add(document["id"])
    if not seen:
        raise ValueError(f"documents has no text. Received: {str(documents)!r}")
    if empty:
        message = f"{len(empty):,} documents have no text, such as {empty[0]}"
        warnings.warn(message, stacklevel=2)


def read_index(folder):
    """Reads an index, after checking all of its files.

    Args:
        folder: string or `Path`, a folder of `build_index`.

    Returns:
        An `Index`.

    Raises:
        FileNotFoundError: if the folder holds no index.
        ValueError: if the index is incomplete, or a file is damaged.

    Example:

    >>> import tempfile
    >>> from rt_keras import data, layers, models
    >>> folder, index = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    >>> _ = (folder / "sky.txt").write_text("The sky is blue.")
    >>> backbone = models.RoutingTransformerEncoderBackbone(
    ...     258, 1, 8, 16, [layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(data.ByteTokenizer(), 24)
    >>> retriever = models.RoutingTransformerTextEmbedder(backbone, preprocessor)
    >>> read_index(build_index(folder, retriever, index)).passages
    [{'document': 'sky.txt', 'title': 'sky', 'text': 'The sky is blue.'}]
    """
    folder = Path(folder)
    manifest = shards.read_finished(folder, "passages")
    shards.check_packed(folder)
    vectors, passages = [], []
    for shard in manifest["shards"]:
        # Closed one by one: a process may only open some hundred files.
        with np.load(folder / shard["file"]) as part:
            vectors.append(part["vectors"])
            texts, ends = part["texts"].tobytes(), part["ends"].tolist()
        passages += [json.loads(texts[x:y]) for x, y in itertools.pairwise([0, *ends])]
    retriever = load_model(folder / RETRIEVER)
    if sum_of_retriever(retriever) != manifest["contents"]["retriever"]:
        raise ValueError(f"{folder / RETRIEVER} is not the retriever that the index was built with")
    return Index(retriever, passages, ExactIndex(np.concatenate(vectors)))


class Index:
    """Passages, and the search for those that are the most similar to a question.

    Args:
        retriever: a text embedder with a preprocessor.
        passages: list of dictionaries of "document", "title" and "text".
        vectors: an index of the passages' embeddings, such as an `ExactIndex`.

    Example:

    >>> from rt_keras import data, layers, models
    >>> backbone = models.RoutingTransformerEncoderBackbone(
    ...     258, 1, 8, 16, [layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(data.ByteTokenizer(), 20)
    >>> retriever = models.RoutingTransformerTextEmbedder(backbone, preprocessor)
    >>> texts = ["blue sky", "deep sea"]
    >>> passages = [{"document": x, "title": "", "text": x} for x in texts]
    >>> index = Index(retriever, passages, ExactIndex(retriever.embed_texts(texts)))
    >>> index.search(["deep sea"], k=1)[0][0]["text"]
    'deep sea'
    """

    def __init__(self, retriever, passages, vectors):
        self.retriever, self.passages, self.vectors = retriever, passages, vectors

    @property
    def texts(self):
        """The texts of the passages that models read, a list of strings."""
        return [text_of(passage) for passage in self.passages]

    def search(self, questions, k):
        """Finds the passages that are the most similar to questions.

        Args:
            questions: list of strings.
            k: int, number of passages to find for each question.

        Returns:
            For each question, a list of at most k passages with their "score", the best first.

        Raises:
            ValueError: if a question is empty, or `questions` is a string.
        """
        if isinstance(questions, str):
            raise wrong_value("questions", "a list of strings", questions)
        for question in questions:
            if not question.strip():
                raise ValueError(f"a question must not be empty. Received: {question!r}")
        queries = self.retriever.embed_texts(questions, self.retriever.question_length)
        scores, numbers = (x.numpy().tolist() for x in self.vectors.search(queries, k))
        return [
            [{**self.passages[number], "score": score} for number, score in zip(*row)]
            for row in zip(numbers, scores)
        ]


def sum_of_retriever(retriever):
    """Returns the SHA-256 sum of the weights, the options and the vocabulary of a text embedder."""
    total = hashlib.sha256()
    for weight in retriever.weights:
        values = weight.numpy()
        # Loading changes half precision, but not the values.
        values = values.astype("float32") if keras.backend.is_float_dtype(weight.dtype) else values
        total.update(np.ascontiguousarray(values).tobytes())
    preprocessor = retriever.preprocessor
    vocabulary = preprocessor.tokenizer.get_vocabulary()
    # Models with equal weights may pool or attend differently.
    config = _options(retriever.get_config())
    config = [preprocessor.sequence_length, preprocessor.truncate, vocabulary, config]
    total.update(json.dumps(config, default=str, sort_keys=True).encode())
    return total.hexdigest()


def _options(config):
    """Returns a configuration without its preprocessor, and without what loading may change."""
    if isinstance(config, dict):
        return {name: _options(x) for name, x in config.items() if name not in CHANGEABLE}
    return [_options(x) for x in config] if isinstance(config, (list, tuple)) else config


def _source(documents):
    """Describes the files of documents, to detect changes: name, bytes and time of each."""
    path = Path(documents)
    names = list_files(path, ".txt") if path.is_dir() else [""]
    statuses = [(name or path.name, (path / name).stat()) for name in names]
    listing = [[name, status.st_size, status.st_mtime_ns] for name, status in statuses]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def _records(retriever, passages):
    """Yields the embedding of each passage and its JSON text, as bytes."""
    while batch := list(itertools.islice(passages, PASSAGES_AT_ONCE)):
        vectors = retriever.embed_texts([text_of(passage) for passage in batch])
        for vector, passage in zip(vectors, batch):
            yield vector.tobytes() + json.dumps(passage, ensure_ascii=False).encode()


def _save(path, records, features):
    """Writes the vectors of records, their texts one after the other, and the end of each text."""
    size = 4 * features
    texts = [record[size:] for record in records]
    vectors = np.frombuffer(b"".join(record[:size] for record in records), np.float32)
    np.savez(
        path,
        vectors=vectors.reshape([len(records), features]),
        texts=np.frombuffer(b"".join(texts), np.uint8),
        ends=np.cumsum([len(text) for text in texts]),
    )
