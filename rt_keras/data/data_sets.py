"""The data sets of each kind of examples: their builders, which TensorFlow Datasets prepares."""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import re
import sys
from pathlib import Path

from rt_keras import files
from rt_keras.arguments import wrong_value
from rt_keras.data import extras

# The classes of the sets that are on this machine, each in its module of this package.
BUILDERS = {
    "python_source": "text_folder.PythonSource",
    "text_folder": "text_folder.TextFolder",
    "text_file": "text_folder.TextFile",
    "enwik8": "enwik8.Enwik8",
    "wikitext103": "wikitext103.WikiText103",
    "pairs_folder": "pairs_folder.PairsFolder",
    "parallel_documents": "pairs_folder.ParallelDocuments",
    "question_folder": "question_folder.QuestionFolder",
    "kilt": "question_folder.Kilt",
    "idx_images": "idx_images.IdxImages",
    "speech_folder": "speech_folder.SpeechFolder",
}
# The sets that have another name in TensorFlow Datasets.
RENAMED = {"downsampled_imagenet": "downsampled_imagenet/64x64"}


@dataclasses.dataclass(frozen=True)
class DataSets:
    """The data sets of one kind of examples, by name.

    Args:
        words: string, all names in words, for error messages: "it must be {words}".
        others: regular expression that matches the names of sets without a folder, which TensorFlow
            Datasets downloads or which are on the machine.
        folders: tuple of the names of sets read from a folder or a file. Defaults to none.

    >>> sets = DataSets("mnist or cifar10", "mnist|cifar10")
    >>> "mnist" in sets, "mnist2" in sets
    (True, False)
    """

    words: str
    others: str
    folders: tuple = ()

    def __contains__(self, name):
        return name in self.folders or re.fullmatch(self.others, name) is not None

    def builder(self, name, directory=None, data_dir=None):
        """Returns the builder of a set, which may not be prepared yet.

        Args:
            name: the name of the set.
            directory: path of the folder or file to read, or None for sets that need none. Defaults
                to None.
            data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
                Datasets.

        Returns:
            A `tfds.core.DatasetBuilder`.

        Raises:
            ValueError: if there is no such set, or if `directory` is missing or given to a set that
                does not take one.
        """
        if name not in self:
            raise wrong_value("name", self.words, name)
        if name in self.folders and directory is None:
            raise wrong_value("directory (data.directory)", f"the path to read for {name}", None)
        if name not in self.folders and directory is not None:
            others = ", ".join(self.folders) or "other data"
            raise wrong_value("directory", f"None for {name}; it is for {others}", str(directory))
        if name not in BUILDERS:
            return downloaded(RENAMED.get(name, name), data_dir)
        module, cls = BUILDERS[name].split(".")
        cls = getattr(importlib.import_module(f"rt_keras.data.{module}"), cls)
        return cls(*([] if directory is None else [directory]), data_dir=data_dir)

    def prepared(self, name, directory=None, data_dir=None):
        """Returns the builder of a set once it is prepared; see `builder` and `prepare`."""
        return prepare(self.builder(name, directory, data_dir))


def tensorflow_datasets():
    """Imports TensorFlow Datasets, which needs the extra `train`."""
    with extras.needed("train", "Reading data sets"):
        import tensorflow_datasets as tfds

    return tfds


def downloaded(name, data_dir=None):
    """Returns the builder of a set that TensorFlow Datasets has, such as "cifar10"."""
    try:
        return tensorflow_datasets().builder(name, data_dir=data_dir)
    except ValueError as error:  # Its message lists hundreds of sets.
        raise wrong_value("name", "a set of TensorFlow Datasets", name) from error


def prepare(builder):
    """Downloads or reads a set and prepares its files unless they exist.

    If another process prepares the same set, this one waits for it.

    Args:
        builder: a `tfds.core.DatasetBuilder`.

    Returns:
        The builder, now prepared.

    Raises:
        OSError: if downloading or preparing a set of TensorFlow Datasets failed.
        ValueError: if a file of a folder does not belong to the set.
    """
    if builder.is_prepared():
        return builder
    try:
        with files.locked(_folder(builder), wait=True):
            _prepare_locked(builder)
    except Exception as error:  # TFDS does not wrap the errors of a download.
        if hasattr(builder, "files"):
            raise
        name = builder.info.full_name
        raise OSError(
            f"{name} could not be downloaded and prepared ({type(error).__name__}: {error}). If "
            f"you have a prepared copy, set data_dir to the folder that holds {name}."
        ) from error
    return builder


def _prepare_locked(builder):
    """Prepares a set unless another process has done it, which this builder has not noticed."""
    if Path(builder.data_dir).exists():
        builder.info.read_from_directory(builder.data_dir)
        return
    # TFDS would nest several bars and print the paths of its files.
    tfds = tensorflow_datasets()
    tfds.disable_progress_bar()
    try:
        print(f"preparing {builder.name}", file=sys.stderr, flush=True)
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare()
    finally:
        tfds.enable_progress_bar()


def _folder(builder):
    """Returns the folder that holds the prepared versions of a set."""
    if "://" in str(builder.data_dir):
        raise wrong_value("data_dir", "a folder on this machine", str(builder.data_dir))
    return Path(builder.data_dir).parent


def read(builder, split, part=""):
    """Reads the examples of a split, in a fixed order.

    Args:
        builder: a `tfds.core.DatasetBuilder` that is prepared.
        split: the name of a split.
        part: a slice of the split in the notation of TFDS, such as "[:90%]". Defaults to "", the
            whole split.

    Returns:
        `tf.data.Dataset` of dictionaries with the builder's features.

    Raises:
        ValueError: if there is no such split.
    """
    _check_split(builder, split)
    # Otherwise TFDS caches small sets in memory and warns if one is not read to the end.
    config = tensorflow_datasets().ReadConfig(try_autocache=False)
    return builder.as_dataset(split=split + part, shuffle_files=False, read_config=config)


def identity(builder, split):
    """Returns a dictionary of JSON values that identifies the examples of a prepared split."""
    _check_split(builder, split)
    info = builder.info.splits[split]
    return {
        "set": builder.info.full_name,
        "split": split,
        "examples": info.num_examples,
        "bytes": info.num_bytes,
    }


def packed_folder(builder, split, identity):
    """Returns the folder in which a split is packed, next to the prepared set.

    Args:
        builder: a `tfds.core.DatasetBuilder`.
        split: string.
        identity: JSON value, everything that the packed files depend on. It determines the name of
            the folder.

    Returns:
        A `Path`.
    """
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return _folder(builder) / f"packed-{split}-{fingerprint[:16]}"


def source(builder, split):
    """Describes the source of a split, to detect changes.

    Args:
        builder: a `tfds.core.DatasetBuilder`, prepared or not.
        split: string.

    Returns:
        A dictionary of JSON values: from the full name of a set of TensorFlow Datasets to True; or
        from the path of each file to [bytes, time of the last change in nanoseconds].
    """
    if not hasattr(builder, "files"):
        return {builder.info.full_name: True}
    names = builder.files.get(split, ())
    return {str(builder.directory / x): list(builder.size_and_time(x)) for x in names}


def _check_split(builder, split):
    """Raises a ValueError if a set has no such split, which names what a folder would need."""
    if split in builder.info.splits:
        return
    message = (
        f"split must be one of {', '.join(builder.info.splits)} for {builder.name}. "
        f"Received: split={split!r}"
    )
    if hasattr(builder, "split_files") and split in ("train", "validation", "test"):
        message += f". {builder.directory} needs {builder.split_files.format(split=split)}"
    raise ValueError(message)
