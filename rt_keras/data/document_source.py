"""The documents of a folder or of a file of JSON lines, one after another."""

from pathlib import Path

from rt_keras.data import file_reading

SUFFIXES = (".jsonl", ".json")
# The key of the id in KILT's knowledge source, by which it is recognized.
KILT_ID = "wikipedia_id"


def read_documents(path, empty=None):
    """Reads the documents of a folder or a file, one after another.

    Args:
        path: path of a folder of UTF-8 `.txt` files; or of a `.jsonl` or `.json` file with one JSON
            object per line, in one of two forms, which the first line decides. In the first, a line
            has an "id", a "text" and optionally a "title"; other keys are ignored. In the second,
            that of KILT's knowledge source, it has a "wikipedia_id", a "wikipedia_title" and, as
            "text", a list of paragraphs. Blank lines are skipped.
        empty: list to which the ids of documents without text are appended, or None. They are left
            out. Defaults to None.

    Returns:
        An iterator of dictionaries with the strings "id", "title" and "text". Only one document at
        a time is in memory. Files are in the order of their ids, which are their paths relative to
        the folder, with forward slashes; a title is the name of the file without `.txt`. Lines keep
        their order; a missing title is empty, and paragraphs are joined with newlines. Equal ids
        are not noticed.

    Raises:
        FileNotFoundError: if there is no such folder or file, or the folder has no `.txt` file.
        ValueError: if the file has another suffix or no documents; during the iteration, if a
            file, its name or a line is not UTF-8, or if a line is not JSON or lacks a value. The
            error names the file and the line.

    Source: KILT's knowledge source: Petroni et al. 2021, KILT: a Benchmark for Knowledge Intensive
    Language Tasks.

    Example:

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "sky.txt").write_text("The sky is blue.")
    >>> list(read_documents(folder))
    [{'id': 'sky.txt', 'title': 'sky', 'text': 'The sky is blue.'}]
    """
    path = Path(path)
    if path.is_dir():
        return _with_text(_read_texts(path, file_reading.list_files(path, ".txt")), empty)
    needed = f"path must be a folder of .txt files or a {' or '.join(SUFFIXES)} file of JSON lines"
    if not path.is_file():
        raise FileNotFoundError(f"{needed}. Received: path={str(path)!r}, which does not exist")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{needed}. Received: path={str(path)!r}")
    _, first = next(file_reading.read_json_lines(path), (0, None))
    if first is None:
        raise ValueError(f"{path} has no documents")
    lines = file_reading.read_json_lines(path, _page if KILT_ID in first else _document)
    return _with_text((document for _, document in lines), empty)


def text_of(document):
    """Returns the text of a document, or of a passage of it, that models read.

    Args:
        document: dictionary with the strings "title" and "text".

    Returns:
        The title, if there is one, and below it the text.

    >>> text_of({"title": "tale", "text": "Once upon"})
    'tale\\nOnce upon'
    """
    return "\n".join(filter(None, (document["title"], document["text"])))


def _with_text(documents, empty):
    for document in documents:
        if document["text"].strip():
            yield document
        elif empty is not None:
            empty.append(document["id"])


def _read_texts(folder, names):
    """Yields the documents of the text files of a folder."""
    for name in names:
        path = folder / name
        if not file_reading.is_utf8(name):
            raise ValueError(f"the name of the file {str(path)!r} is not UTF-8 text")
        yield {"id": name, "title": path.stem, "text": file_reading.read_utf8(path)}


def _document(values):
    """Makes a document of a line with an id, a text and optionally a title."""
    document = {
        "id": _id("id", values),
        "title": values.get("title", ""),
        "text": values.get("text"),
    }
    for name in ("title", "text"):
        file_reading.check_text(name, document[name], may_be_empty=True)
    return document


def _page(values):
    """Makes a document of a page of KILT's knowledge source."""
    file_reading.check_text("wikipedia_title", values.get("wikipedia_title"))
    paragraphs = values.get("text")
    file_reading.check_list("text", paragraphs, str, "texts")
    return {
        "id": _id(KILT_ID, values),
        "title": values["wikipedia_title"],
        "text": "\n".join(paragraph.removesuffix("\n") for paragraph in paragraphs),
    }


def _id(name, values):
    """Returns an id, which may be a whole number in the file."""
    number = values.get(name)
    if isinstance(number, int) and not isinstance(number, bool):
        number = str(number)
    file_reading.check_text(name, number)
    return number
