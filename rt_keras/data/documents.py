"""Loading and counting the documents of a data set."""

from rt_keras.data.data_sets import DataSets, read

SETS = DataSets(
    "one of python_source, text_folder, text_file, pg19, enwik8, wikitext103",
    "pg19|python_source",
    ("text_folder", "text_file", "enwik8", "wikitext103"),
)


def load_documents(name, split, directory=None, data_dir=None, require_utf8=False):
    """Loads the documents of one split as byte strings.

    Args:
        name: "python_source" (the source of Python's standard library, always available),
            "text_folder" (the `.txt` files of `directory`), "text_file" (the file `directory`,
            split in three), "pg19" (books of Project Gutenberg from before 1919, an 11 GB download
            of TensorFlow Datasets), "enwik8" or "wikitext103" (their files in `directory`).
        split: "train", "validation" or "test".
        directory: path of the folder for "text_folder", "enwik8" and "wikitext103", or of the file
            for "text_file".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        require_utf8: bool, whether to raise an error for a file that is not valid UTF-8. Set it for
            a tokenizer with `needs_utf8`. Defaults to False.

    Returns:
        `tf.data.Dataset` of scalar strings, in a fixed order.

    Raises:
        FileNotFoundError: if the folder or file does not exist, or the folder holds no text.
        OSError: if "pg19" cannot be downloaded and prepared.
        ValueError: if there is no such data set or split, if `directory` is missing or given to a
            set that does not take one, if a file does not belong to the set, or if a file is not
            UTF-8 although `require_utf8` is True.

    Example:

    >>> import tempfile
    >>> source = load_documents("python_source", "test", data_dir=tempfile.mkdtemp())
    >>> any(b"import" in document for document in source.as_numpy_iterator())
    True
    """
    builder = SETS.prepared(name, directory, data_dir)
    examples = read(builder, split)
    if require_utf8:
        _check_utf8(builder, split)
    return examples.map(lambda example: example["book_text" if name == "pg19" else "text"])


def _check_utf8(builder, split):
    """Raises a ValueError if a file of a split is not UTF-8, which builders of folders record."""
    not_utf8 = (builder.info.metadata or {}).get("not_utf8", ())
    if bad := [name for name in not_utf8 if name in builder.files[split]]:
        raise ValueError(
            f"{builder.directory / bad[0]} is not UTF-8 text (such files in {split}: {len(bad)}). "
            "Convert it, or use the byte tokenizer, which accepts any bytes."
        )


def count_text(documents):
    """Counts the documents, bytes and words of a data set.

    Args:
        documents: `tf.data.Dataset` of scalar strings.

    Returns:
        Dictionary of ints: "documents", "bytes" and "words". Words are separated by ASCII white
        space, as in `bytes.split()` and in PG-19.

    Source: words as in Rae et al. 2019, Compressive Transformers, section 4.

    Example:

    >>> import tensorflow as tf
    >>> count_text(tf.data.Dataset.from_tensor_slices(["two words", "caf\\u00e9"]))
    {'documents': 2, 'bytes': 14, 'words': 3}
    """

    counts = {"documents": 0, "bytes": 0, "words": 0}
    for document in documents.as_numpy_iterator():
        counts["documents"] += 1
        counts["bytes"] += len(document)
        counts["words"] += len(document.split())
    return counts
