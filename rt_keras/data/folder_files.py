"""The files of a folder, and the error for a folder that cannot be read."""

import os
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
    found = {}
    for name in sorted(path.name for path in directory.iterdir() if path.is_file()):
        if match := pattern.fullmatch(name):
            other = found.setdefault(kind_of(match), name)
            if other != name:
                kind = " ".join(kind_of(match))
                problem = f"directory must hold one file of {kind}, not {other} and {name}"
                raise wrong_folder(problem, directory, ValueError)
    return found


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


def wrong_folder(problem, directory, error=FileNotFoundError):
    """Returns the error for a folder that cannot be read."""
    return error(f"{problem}. Received: directory={str(directory)!r}")
