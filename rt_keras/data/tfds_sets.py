"""Downloading, preparing and reading data sets with TensorFlow Datasets."""

import contextlib
import hashlib
import io
import json
import sys
from pathlib import Path

from rt_keras import extras, files
from rt_keras.data.text_folder import SPLITS, TextFolder
from rt_keras.keys import wrong_value

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds


def named(name, data_dir=None):
    """Returns the builder of a set of TensorFlow Datasets.

    Args:
        name: the name in TensorFlow Datasets, such as "cifar10" or "wmt14_translate/de-en".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        A `tfds.core.DatasetBuilder`.

    Raises:
        ValueError: if there is no such set.
    """
    try:
        return tfds.builder(name, data_dir=data_dir)
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
        return _prepared_once(builder)
    except Exception as error:  # TFDS does not wrap the errors of a download.
        if isinstance(builder, TextFolder):
            raise
        raise OSError(
            f"{builder.info.full_name} could not be downloaded and prepared "
            f"({type(error).__name__}: {error}). If you have a prepared copy, set data_dir to the "
            f"folder that holds {builder.info.full_name}."
        ) from error


def _prepared_once(builder):
    with files.locked(_folder(builder), wait=True):
        if Path(builder.data_dir).exists():
            # Another process has prepared it, which this builder has not noticed yet.
            builder.info.read_from_directory(builder.data_dir)
            return builder
        # TFDS would nest several bars and print the paths of its files.
        tfds.disable_progress_bar()
        try:
            print(f"preparing {builder.name}", file=sys.stderr, flush=True)
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
        finally:
            tfds.enable_progress_bar()
    return builder


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
    config = tfds.ReadConfig(try_autocache=False)
    return builder.as_dataset(split=split + part, shuffle_files=False, read_config=config)


def identity(builder, split):
    """Identifies the examples of a split.

    Args:
        builder: a `tfds.core.DatasetBuilder` that is prepared.
        split: string.

    Returns:
        A dictionary of JSON values.

    Raises:
        ValueError: if there is no such split.
    """
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
    if not isinstance(builder, TextFolder):
        return {builder.info.full_name: True}
    names = builder.files.get(split, ())
    return {str(Path(builder.directory, x)): list(builder.size_and_time(x)) for x in names}


def _check_split(builder, split):
    if split not in builder.info.splits:
        message = (
            f"split must be one of {', '.join(builder.info.splits)} for {builder.name}. "
            f"Received: split={split!r}"
        )
        if isinstance(builder, TextFolder) and split in SPLITS:
            needed = builder.split_files.format(split=split)
            message += f". {builder.directory} needs {needed}"
        raise ValueError(message)
