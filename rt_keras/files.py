"""The folder of the published configurations; atomic writes, sums and locks."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

# The sums of the files in a folder, as the command `sha256sum` writes them.
SUMS = "SHA256SUMS"


def config_folder():
    """Returns the folder of the published configurations.

    It is inside the installed package, and next to it in a checkout.
    """
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


@contextlib.contextmanager
def whole_file(path, suffix=""):
    """Yields the path of a temporary file, which replaces `path` once it is written.

    An error during writing, such as a full disk or an interruption, leaves `path` unchanged.

    Args:
        path: string or `Path`, the file to write. Missing folders are created.
        suffix: string, the suffix of the temporary name, for writers that depend on it. Defaults
            to "".

    Yields:
        The `Path` to write to, in the folder of `path`.

    Raises:
        FileNotFoundError: if `path` or a folder above it is a dangling link.
        NotADirectoryError: if `path` is below a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with whole_file(path) as part:
    ...     _ = part.write_text("1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    path = Path(path)
    _check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{suffix}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path):
    """Yields a temporary folder, which replaces `path` once it is written.

    Args:
        path: string or `Path`, the folder to write. It must be new or empty.

    Yields:
        The `Path` of the folder to write to, next to `path`.

    Raises:
        FileExistsError: if `path` is a file or a folder that is not empty.
        FileNotFoundError: if `path` or a folder above it is a dangling link.
        NotADirectoryError: if `path` is below a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts"
    >>> with whole_folder(path) as part:
    ...     _ = (part / "1.txt").write_text("one")
    >>> [file.name for file in path.iterdir()]
    ['1.txt']
    """
    path = Path(path)
    check_new_folder(path)
    with _folder_beside(path) as part:
        yield part
        os.replace(part, path)


@contextlib.contextmanager
def new_files(folder):
    """Yields a temporary folder, whose files replace those of another one after the other.

    At any time, each file is whole. At the end, the folder has new sums; see `write_sums`.

    Args:
        folder: `Path`, which need not exist. Its other files stay.

    Yields:
        The `Path` of the folder to write to, next to `folder`.
    """
    with _folder_beside(folder) as part:
        yield part
        (folder / SUMS).unlink(missing_ok=True)
        shutil.copytree(part, folder, copy_function=os.replace, dirs_exist_ok=True)
    write_sums(folder)


@contextlib.contextmanager
def _folder_beside(path):
    """Yields a temporary folder of the same name on the same disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as outer:
        part = Path(outer, path.name)
        part.mkdir()
        yield part


def check_new_folder(path):
    """Raises an `OSError` if a new folder cannot be written to a path.

    Args:
        path: string or `Path`. It may be an empty folder.

    Raises:
        FileExistsError: if `path` is a file or a folder that is not empty.
        FileNotFoundError: if `path` or a folder above it is a dangling link.
        NotADirectoryError: if `path` is below a file.
    """
    path = Path(path)
    _check_path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"{path} already exists; name a new or an empty folder")


def write_json(path, values):
    """Writes values to a file as JSON, atomically.

    Args:
        path: string or `Path`, the file.
        values: dictionary or list of JSON values.
    """
    with whole_file(path) as part:
        part.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def read_json(path):
    """Reads the JSON object in a file.

    Args:
        path: string or `Path`, the file.

    Returns:
        A dictionary.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file does not hold a JSON object.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return values


def sum_of_file(path):
    """Computes the SHA-256 sum of a file, in hexadecimal digits.

    Args:
        path: string or `Path`, the file.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder):
    """Writes the SHA-256 sums of the files in a folder to its file `SHA256SUMS`.

    `check_sums` compares them, and so does the command `sha256sum -c SHA256SUMS`.

    Args:
        folder: string or `Path`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_json(folder / "config.json", {})
    >>> write_sums(folder)
    >>> check_sums(folder)
    """
    folder = Path(folder)
    (folder / SUMS).unlink(missing_ok=True)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with whole_file(folder / SUMS) as part:
        lines = [f"{sum_of_file(path)}  {path.relative_to(folder)}\n" for path in paths]
        part.write_text("".join(lines), encoding="utf-8")


def check_sums(folder):
    """Raises an error if a file in a folder has changed since `write_sums`.

    Args:
        folder: string or `Path`. Without a file `SHA256SUMS`, nothing is checked.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file has changed.
    """
    sums = Path(folder, SUMS)
    text = sums.read_text(encoding="utf-8", errors="replace") if sums.exists() else ""
    for line in text.splitlines():
        expected, _, name = line.partition("  ")
        path = sums.parent / name
        if sum_of_file(path) != expected:
            raise ValueError(f"{path} is damaged: its bytes are not those of {SUMS}")


def check_space(folder, size):
    """Raises an `OSError` if a disk has no space for a file.

    HDF5 may crash the process if the disk is full.

    Args:
        folder: string or `Path`.
        size: int, bytes of the file. The free space must exceed it by 10% and a megabyte.

    Raises:
        OSError: if there is less free space.
    """
    needed, free = size + size // 10 + 2**20, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"no space left: {needed:,} bytes are needed, {free:,} free", str(folder)
        )


def delete(path):
    """Deletes a file, or a folder with its contents.

    Args:
        path: `Path`. It need not exist.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder, wait=False):
    """Locks a folder against other processes that lock it.

    Args:
        folder: string or `Path`. A missing folder is created, and deleted again if nothing is
            written to it, unless others may wait for it. The lock is on the file `.lock` in it, and
            the end of the process releases it.
        wait: bool, whether to wait for a process that has the lock, with a message. Defaults to
            False.

    Raises:
        BlockingIOError: if another process has the lock, unless `wait` is set.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise BlockingIOError(f"{folder} is in use by another process") from None
            print(f"waiting for another process, which is using {folder}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if is_new and not wait and os.listdir(folder) == [".lock"]:
                delete(folder)


def check_writable(name, path):
    """Raises a ValueError if no file can be written to a path.

    Args:
        name: string, the name of the path in the error.
        path: string or `Path`. The folders above it need not exist.
    """
    path = Path(path)
    folder = next((folder for folder in path.absolute().parents if folder.exists()), path)
    try:
        _check_path(path)
    except OSError as error:
        raise ValueError(f"{name} must be a file that can be written: {error}") from None
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{name} must be a file that can be written. Received: {path}")


def _check_path(path):
    """Raises an `OSError` if `path` is a dangling link, or is below one, or below a file."""
    for part in (path, *path.parents):
        if part.is_symlink() and not part.exists():
            target = os.readlink(part)
            raise FileNotFoundError(f"{part} is a link to {target}, which does not exist")
        if part != path and part.exists() and not part.is_dir():
            raise NotADirectoryError(f"{part} is not a folder")
