"""The folder of the published configurations; atomic writes of files and folders; locks."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import filelock


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
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=suffix, dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        # mkstemp creates files that only their owner can read. This one gets the usual permissions.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as part:
        inner = Path(part) / path.name
        inner.mkdir()
        yield inner
        os.replace(inner, path)


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


def write_sealed_json(path, values):
    """Writes values to a file as JSON, with a checksum that `read_sealed_json` compares.

    Args:
        path: string or `Path`, the file.
        values: dictionary of JSON values.
    """
    write_json(path, {**values, "sha256": _sum_of_values(values)})


def read_sealed_json(path):
    """Reads the values that `write_sealed_json` wrote.

    Args:
        path: string or `Path`, the file.

    Returns:
        The dictionary of values.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "list.json"
    >>> write_sealed_json(path, {"files": 2})
    >>> read_sealed_json(path)
    {'files': 2}
    """
    values = read_json(path)
    if values.pop("sha256", None) != _sum_of_values(values):
        raise ValueError(f"{path} is damaged: its content has changed")
    return values


def _sum_of_values(values):
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("utf-8")).hexdigest()


def sum_of_file(path):
    """Computes the SHA-256 sum of a file, in hexadecimal digits.

    Args:
        path: string or `Path`, the file.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal_weights(path):
    """Adds a checksum to a file of weights, which `check_weights` compares.

    Args:
        path: string or `Path`, the HDF5 file.
    """
    import h5py

    with h5py.File(path, "r+") as file:
        file.attrs["sha256"] = _sum_of_weights(file)


def check_weights(path):
    """Raises a ValueError if a file of weights is damaged or holds something else.

    Args:
        path: string or `Path`, the HDF5 file. If `seal_weights` added a checksum, the weights must
            match it.
    """
    import h5py

    try:
        with h5py.File(path) as file:
            found, expected = _sum_of_weights(file), file.attrs.get("sha256")
    except FileNotFoundError:
        raise
    # Changed bytes can raise any exception in HDF5.
    except Exception as error:
        raise ValueError(f"{path} is damaged: its weights cannot be read ({error})") from None
    if expected not in (None, found):
        raise ValueError(f"{path} is damaged: its weights have changed")


def _sum_of_weights(file):
    """Computes the SHA-256 sum of all arrays in an HDF5 file and their names."""
    import h5py
    import numpy as np

    total = hashlib.sha256()

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            values = np.asarray(item[()])
            total.update(f"{name} {values.dtype} {values.shape}".encode())
            total.update(repr(values).encode() if values.dtype == object else values.tobytes())

    file.visititems(add)
    return total.hexdigest()


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
        folder: string or `Path`. A missing folder is created, and deleted at the end if it is
            empty. The lock is on the file `.lock` in it, and the end of the process releases it.
        wait: bool, whether to wait for a process that has the lock, with a message. Defaults to
            False.

    Raises:
        BlockingIOError: if another process has the lock, unless `wait` is set.
    """
    path = Path(folder) / ".lock"
    with _acquired(path, wait):
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        try:
            yield
        finally:
            if list(path.parent.iterdir()) == [path]:
                path.unlink()
                path.parent.rmdir()


def _acquired(path, wait):
    """Acquires the lock on a file and returns it as a context manager, which releases it."""
    lock = filelock.FileLock(path)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The previous owner may delete the folder at its end.
        with contextlib.suppress(FileNotFoundError):
            try:
                return lock.acquire(blocking=False)
            except filelock.Timeout:
                # A new owner has not written its name yet.
                owner = path.read_text(encoding="utf-8") or "another process"
            if not wait:
                raise BlockingIOError(f"{path.parent} is in use by {owner}")
            print(f"waiting for {owner}, which is using {path.parent}", file=sys.stderr, flush=True)
            return lock.acquire()


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
            raise FileNotFoundError(
                f"{part} is a link to {os.readlink(part)}, which does not exist"
            )
        if part != path and part.exists() and not part.is_dir():
            raise NotADirectoryError(f"{part} is not a folder")
