"""Small data sets in the format of TensorFlow Datasets, and the order of training batches."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rt_keras.data import data_sets, load_documents


def write_texts(folder, texts):
    """Writes texts, strings or bytes, to the files of a new folder; returns it."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def write_lines(path, *objects):
    """Writes a file of JSON lines; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(x)}\n" for x in objects), encoding="utf-8")
    return path


def write_set(name, data_dir, splits):
    """Writes a few examples with the set's builder, as if they were the whole download.

    Args:
        name: name in TensorFlow Datasets.
        data_dir: folder of the builder's prepared data.
        splits: dictionary from each split to the list of its examples.
    """
    builder = tfds.builder(name, data_dir=data_dir)
    here = tfds.download.DownloadConfig(try_download_gcs=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(builder),
            "_split_generators",
            lambda self, _: {split: enumerate(examples) for split, examples in splits.items()},
        )
        builder.download_and_prepare(download_config=here)


def load_set(name, folder, split, tmp_path):
    """Returns the documents of a split of a set in a folder."""
    documents = load_documents(name, split, folder, tmp_path / "prepared")
    return list(documents.as_numpy_iterator())


def prepared(builder):
    """Prepares a set and returns the examples of each split."""
    data_sets.prepare(builder)
    splits = {split: data_sets.read(builder, split) for split in builder.info.splits}
    return {split: list(examples.as_numpy_iterator()) for split, examples in splits.items()}


def hashed(batch):
    """A preprocessor that needs no time to be traced: inputs, labels and weights of texts."""
    texts = [batch[name] for name in sorted(batch) if batch[name].dtype == tf.string]
    found = [tf.strings.to_hash_bucket_fast(text, 10**9) for text in texts]
    return tuple(found), found[0], tf.ones_like(found[0])


def check_order(read, rounding=0.0):
    """Checks that a training batch depends on its number and the seed alone, and is shared.

    Args:
        read: function of `seed`, `first_batch` and `share` that returns batches of an even number
            of rows.
        rounding: float, by how much values of one batch may differ. Defaults to 0.

    Returns:
        The batches of the seed 1, a `tf.data.Dataset`.
    """

    def equal(*batches):
        tf.nest.map_structure(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=rounding), *batches
        )

    def halves(batch):
        return tf.nest.map_structure(lambda x: x[len(x) // 2 :], batch)

    batches = read(seed=1)
    whole = list(batches.take(6))
    equal(list(read(seed=1, first_batch=3, share=(1, 2)).take(3)), list(map(halves, whole[3:])))
    with pytest.raises(AssertionError):
        equal(list(read(seed=2).take(6)), whole)
    return batches
