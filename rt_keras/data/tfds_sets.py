"""Sets of TensorFlow Datasets: downloaded, prepared and read."""

import contextlib
import importlib
import io

from rt_keras import extras, progress

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds


def prepared(name, directory, data_dir, folders):
    """The builder of a set that is downloaded or read from a folder, with its files ready.

    Args:
        name: the name of the set.
        directory: path of the folder to read; None for sets that are downloaded.
        data_dir: path of the folder for prepared data sets, or None for that of TensorFlow
            Datasets.
        folders: dictionary from the names of sets that are read from a folder, which are those of
            their modules too, to the names of their builders.

    Returns:
        A `tfds.core.DatasetBuilder`.

    Raises:
        ValueError: if the folder is missing, or is given to a set that is downloaded.
    """
    if name in folders:
        if directory is None:
            raise ValueError(f"directory must be the folder to read for {name}. Received: None")
        module = importlib.import_module(f"rt_keras.data.{name}")
        builder = getattr(module, folders[name])(directory, data_dir=data_dir)
        prepare(builder)
        return builder
    if directory is not None:
        read = "read" if len(folders) > 1 else "reads"
        raise ValueError(
            f"directory must be None for {name}; only {', '.join(folders)} {read} a folder. "
            f"Received: directory={str(directory)!r}"
        )
    return download(name, data_dir)


def download(name, data_dir=None):
    """Downloads and prepares a set, unless that has been done.

    Args:
        name: the name in TensorFlow Datasets, such as "cifar10" or "wmt14_translate/de-en".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        A `tfds.core.DatasetBuilder` whose files are ready.

    Raises:
        ValueError: if there is no such set.
        OSError: if downloading or preparing it failed.
    """
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except ValueError as error:  # Its message lists hundreds of sets.
        raise ValueError(
            f"name must be a set of TensorFlow Datasets. Received: name={name!r}"
        ) from error
    try:
        prepare(builder)
    except Exception as error:  # TFDS passes on whatever a download raises.
        raise OSError(
            f"{builder.info.full_name} could not be downloaded and prepared "
            f"({type(error).__name__}: {error}). If you have a prepared copy, set data_dir to the "
            f"folder that holds {builder.info.full_name}."
        ) from error
    return builder


def prepare(builder):
    """Downloads and prepares the files of a builder, unless they are there, with one progress bar.

    Args:
        builder: a `tfds.core.DatasetBuilder`.
    """
    if builder.is_prepared():
        return
    # TFDS would nest several bars and print the paths of its files.
    tfds.disable_progress_bar()
    try:
        with progress.bar(f"preparing {builder.name}"), contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare()
    finally:
        tfds.enable_progress_bar()


def read(builder, split, part=""):
    """The examples of a split, in a fixed order.

    Args:
        builder: a `tfds.core.DatasetBuilder` whose files are ready.
        split: the name of a split.
        part: a slice of it in the notation of TFDS, such as "[:90%]". Defaults to "", all of it.

    Returns:
        `tf.data.Dataset` of dictionaries with the builder's features.

    Raises:
        ValueError: if there is no such split.
    """
    if split not in builder.info.splits:
        raise ValueError(
            f"split must be one of {', '.join(builder.info.splits)} for {builder.name}. "
            f"Received: split={split!r}"
        )
    # Otherwise TFDS caches a small set in memory, and warns if it is not read to the end.
    config = tfds.ReadConfig(try_autocache=False)
    return builder.as_dataset(split=split + part, shuffle_files=False, read_config=config)
