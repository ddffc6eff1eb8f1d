"""Files of JSON lines: one JSON object per line."""

import codecs
import json
import re


def read_json_lines(path, convert=dict):
    """Reads the JSON objects of a file, one after another.

    Args:
        path: `Path` of a UTF-8 file with one JSON object per line. Blank lines are skipped.
        convert: function of the dictionary of a line, which may raise a ValueError. Defaults to one
            that returns it.

    Yields:
        Pairs of the number of a line, from 1, and what `convert` returns for it.

    Raises:
        ValueError: if a line is not UTF-8, not JSON or not an object, if it has a text that cannot
            be UTF-8, or if `convert` raises one. The error names the file and the line.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "people.jsonl")
    >>> _ = path.write_text('{"name": "Ann"}\\n\\n{"name": "Bo"}\\n')
    >>> list(read_json_lines(path))
    [(1, {'name': 'Ann'}), (3, {'name': 'Bo'})]
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # A file from Windows may start with a byte order mark.
            line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                try:
                    values = convert(_parsed(line))
                except ValueError as error:
                    raise ValueError(f"{path}, line {number:,}: {error}") from None
                yield number, values


def _parsed(line):
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"it must be a JSON object. Received: {shortened(values)}")
    # Only an escape can be half of a surrogate pair.
    escaped = re.search(rb"\\u[dD][89a-fA-F]", line)
    if escaped and not is_utf8(json.dumps(values, ensure_ascii=False)):
        raise ValueError("it has half of a surrogate pair, which is not a character")
    return values


def is_utf8(text):
    """Returns False if bytes are not UTF-8, or if a string has halves of surrogate pairs."""
    convert = str.encode if isinstance(text, str) else bytes.decode
    try:
        convert(text)
    except UnicodeError:
        return False
    return True


def check_text(name, value):
    """Raises a ValueError unless a value is a string that is not blank.

    Args:
        name: string, the key of the value in its JSON object.
        value: JSON value, or None if the key is missing.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not empty. Received: {shortened(value)}")


def check_list(name, values, item, items):
    """Raises a ValueError unless a value is a list of values of a type.

    Args:
        name: string, the key of the value in its JSON object.
        values: JSON value.
        item: the type of the items.
        items: string, the items in words.
    """
    if not isinstance(values, list) or not all(isinstance(x, item) for x in values):
        raise ValueError(f"{name} must be a list of {items}. Received: {shortened(values)}")


def shortened(value):
    """Returns the beginning of a JSON value."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
