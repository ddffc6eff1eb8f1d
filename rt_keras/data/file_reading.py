"""Reading of folders, of UTF-8 texts, and of JSON lines: one JSON object per line."""

import json
import os
import re
from pathlib import Path


def list_files(directory, suffix, left_out=()):
    """Lists the files of a folder and its subfolders with a suffix, except hidden ones.

    Args:
        directory: path of the folder.
        suffix: string, such as ".txt", which stands for ".TXT" too; or a tuple of strings.
        left_out: names of subfolders to skip.

    Returns:
        Sorted list of paths relative to the folder, with forward slashes.

    Raises:
        FileNotFoundError: if the folder does not exist or has no such files.
        NotADirectoryError: if `directory` is a file.
    """
    check_folder(directory)
    names = []
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name[0] != "." and name not in left_out]
        names += [
            Path(folder, name).relative_to(directory).as_posix()
            for name in files
            if name.lower().endswith(suffix) and name[0] != "."
        ]
    if not names:
        suffixes = suffix if isinstance(suffix, str) else " or ".join(suffix)
        raise wrong_folder(f"directory must hold {suffixes} files", directory)
    return sorted(names)


def check_folder(directory):
    """Raises an `OSError` unless a path is that of a folder."""
    if not Path(directory).exists():
        raise wrong_folder("directory must exist", directory)
    if not Path(directory).is_dir():
        problem = "directory must be a folder, not a file; use the data set text_file for a text"
        raise wrong_folder(problem, directory, NotADirectoryError)


def one_file_each(directory, pattern, kind_of):
    """Finds the files of a folder whose names match a pattern, one of each kind.

    Args:
        directory: `Path` of the folder.
        pattern: compiled regular expression.
        kind_of: function of a match that returns a tuple of strings, the kind in words.

    Returns:
        Dictionary from kinds to names of files.

    Raises:
        ValueError: if there are two files of a kind.
    """
    names = {}
    for name in sorted(path.name for path in directory.iterdir() if path.is_file()):
        if match := pattern.fullmatch(name):
            other = names.setdefault(kind_of(match), name)
            if other != name:
                kind = " ".join(kind_of(match))
                problem = f"directory must hold one file of {kind}, not {other} and {name}"
                raise wrong_folder(problem, directory, ValueError)
    return names


def read_utf8(path):
    """Reads the text of a file, without a byte order mark.

    Raises:
        ValueError: if the file is not UTF-8; the message names the file and the line.
    """
    content = Path(path).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path} is not UTF-8 text: see line {line:,}") from None


def read_lines(path):
    """Yields the lines of a file, without the line breaks "\\n" and "\\r\\n".

    Raises:
        ValueError: if a line is not UTF-8; the message names the file and the line.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError:
                raise ValueError(f"{path} is not UTF-8 text: see line {number:,}") from None


def wrong_folder(problem, directory, error=FileNotFoundError):
    """Returns the error for a folder that cannot be read."""
    return error(f"{problem}. Received: directory={str(directory)!r}")


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
    for number, line in enumerate(read_lines(path), start=1):
        # A file from Windows may start with a byte order mark.
        line = line.removeprefix("\ufeff")
        if line.strip():
            try:
                values = convert(_parsed(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number:,}: {error}") from None
            yield number, values


def _parsed(line):
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"it must be a JSON object. Received: {shortened(values)}")
    # Only an escape can be half of a surrogate pair.
    escaped = re.search(r"\\u[dD][89a-fA-F]", line)
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


def check_text(name, value, may_be_empty=False):
    """Raises a ValueError unless a value is a string, which may not be blank by default.

    Args:
        name: string, the key of the value in its JSON object.
        value: JSON value, or None if the key is missing.
        may_be_empty: bool. Defaults to False.
    """
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        needed = "a text" if may_be_empty else "a text that is not empty"
        raise ValueError(f"{name} must be {needed}. Received: {shortened(value)}")


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
