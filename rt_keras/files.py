"""Where the published configurations are, and files that are written whole or not at all."""

import contextlib
import json
import os
import tempfile
from pathlib import Path


def config_folder():
    """The folder of the published configurations.

    It lies inside the package where that is installed, and beside it in a checkout.
    """
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


@contextlib.contextmanager
def whole_file(path, suffix=""):
    """Gives the name of a temporary file that takes the place of `path` once it is written.

    An error while writing (a full disk, an interruption) leaves what was at `path` as it was.

    Args:
        path: the file to write; its folder is made where it is missing.
        suffix: ending of the temporary name, for writers that look at it.

    Yields:
        The path to write to, in the folder of `path`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with whole_file(path) as part:
    ...     _ = part.write_text("1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=suffix, dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        # mkstemp makes files that their owner alone can read; give this one the usual rights.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path):
    """Gives a temporary folder that takes the place of `path` once it is written.

    Args:
        path: the folder to write; it must not exist yet or be empty.

    Yields:
        The folder to write to, beside `path`.

    Raises:
        FileExistsError: if there is something at `path` already.
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
    """Raises a FileExistsError if there is anything at `path` but an empty folder."""
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"{path} already holds something; name a new or an empty folder")


def write_json(path, values):
    """Writes `values` to `path` as JSON, whole or not at all."""
    with whole_file(path) as part:
        part.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def check_writable(name, path):
    """Raises a ValueError if no file can be written to `path`, folders above it included.

    Args:
        name: string, what the error calls the path.
        path: string or `Path`; the folders above it need not exist.
    """
    path = Path(path)
    folder = next((folder for folder in path.absolute().parents if folder.exists()), path)
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{name} must be a file that can be written. Received: {path}")


def read_json(path):
    """Reads the JSON object in a file.

    Args:
        path: the file.

    Returns:
        A dictionary.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds something else than a JSON object.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return values


def check_weights(path):
    """Raises a ValueError if a file of weights was not written to its end, or is something else.

    Args:
        path: the file, in HDF5.
    """
    import h5py

    try:
        h5py.File(path).close()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} is damaged: its weights cannot be read ({error})") from None
