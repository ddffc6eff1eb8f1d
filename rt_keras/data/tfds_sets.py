"""Sets of TensorFlow Datasets: downloaded and prepared where they are not yet, and read."""

import contextlib
import io

from rt_keras import extras, progress

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds


def download(name, data_dir=None):
    """The builder of a set, its files in place.

    Args:
        name: as TensorFlow Datasets has it, such as "cifar10" or "wmt14_translate/de-en".
        data_dir: the folder where TensorFlow Datasets keeps what it prepared; what lies there is
            not downloaded again. By default its own folder.

    Returns:
        A `tfds.core.DatasetBuilder`.

    Raises:
        ValueError: if there is no such set.
        OSError: if downloading or preparing it failed.
    """
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except ValueError as error:  # Its message lists hundreds of sets.
        raise ValueError(f"name={name!r}: TensorFlow Datasets has no such set") from error
    try:
        prepare(builder)
    except Exception as error:  # TFDS lets through whatever a download can raise.
        raise OSError(
            f"{builder.info.full_name} could not be downloaded and prepared "
            f"({type(error).__name__}: {error}). If there is a prepared copy of it elsewhere, "
            f"name with data_dir the folder that holds {builder.info.full_name}"
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
    """The examples of a split, in an order that does not change.

    Args:
        builder: a `tfds.core.DatasetBuilder` whose files are in place.
        split: the name of a split.
        part: which part of it, as TFDS writes slices, such as "[:90%]"; by default all.

    Returns:
        `tf.data.Dataset` of dictionaries, as the builder's features are.

    Raises:
        ValueError: if there is no such split.
    """
    if split not in builder.info.splits:
        raise ValueError(
            f"split={split!r} does not exist in {builder.name}: it has "
            f"{', '.join(builder.info.splits)}"
        )
    # TFDS would keep a small set in memory, and warn whenever it is not read to its end.
    config = tfds.ReadConfig(try_autocache=False)
    return builder.as_dataset(split=split + part, shuffle_files=False, read_config=config)
