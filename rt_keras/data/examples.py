"""Examples such as images or pairs of texts, packed for random access.

The files are in the ArrayRecord format, which has an index of its records. Each record is a
`tf.train.Example` with the bytes of each tensor.
"""

import contextlib
from pathlib import Path

import numpy as np
import tensorflow as tf

from rt_keras.data import extras, shards
from rt_keras.data.order import batches_of_numbers

# Bytes per file before compression: these are held in memory, and lost if packing is interrupted.
SHARD_BYTES = 2**28


def pack_examples(examples, folder, identity=None):
    """Packs examples into the files of a folder, for `training_pairs` or `training_images`.

    Interrupted packing resumes where it stopped, and a completed folder is left unchanged. If
    another process packs into the same folder, this one waits for it. A file that is missing or has
    the wrong size is written again.

    Args:
        examples: `tf.data.Dataset` of dictionaries of tensors in a fixed order, as from
            `load_pairs` or `load_images`: strings or numbers whose shape is the same in all.
        folder: string or `Path`, the folder to write to or to resume in.
        identity: JSON value that identifies the examples, such as a name and a version. A folder
            packed with another identity raises an error. Defaults to None.

    Returns:
        The `Path` of the folder.

    Raises:
        ValueError: if there are no examples, if the shape of a tensor is not the same in all,
            or if the folder holds other data or a damaged manifest.
        OSError: if the disk is full.

    Example:

    >>> import tempfile
    >>> pairs = tf.data.Dataset.from_tensors({"encoder_text": "four", "decoder_text": "4"})
    >>> packed = pack_examples(pairs, tempfile.mkdtemp())
    >>> sorted(path.name for path in packed.iterdir())
    ['.lock', '00000.array_record', 'manifest.json']
    """

    def read(first):
        return map(_record, examples.skip(first).prefetch(tf.data.AUTOTUNE).as_numpy_iterator())

    tensors = {}
    for name, spec in examples.element_spec.items():
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"examples must be tensors of a fixed shape. Received: {name!r} of shape "
                f"{spec.shape} and type {spec.dtype.name}"
            )
        tensors[name] = {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
    contents = {"unit": "examples", "tensors": tensors, "identity": identity}
    count = int(examples.cardinality())
    return shards.write(folder, contents, read, _save, ".array_record", SHARD_BYTES, count)


def _record(example):
    """Returns a `tf.train.Example` with each string of a tensor, or the bytes of its numbers."""
    record = tf.train.Example()
    for name, value in example.items():
        value = np.asarray(value, object if isinstance(value, bytes) else None)
        strings = value.flatten().tolist() if value.dtype == object else [value.tobytes()]
        record.features.feature[name].bytes_list.value.extend(strings)
    return record.SerializeToString(deterministic=True)


def _save(path, records):
    """Writes records to a file."""
    with extras.needed("train", "Packing examples"):
        from array_record.python.array_record_module import ArrayRecordWriter

    with contextlib.closing(ArrayRecordWriter(str(path), "group_size:1")) as writer:
        for record in records:
            writer.write(record)


def packed_strings(packed, name):
    """Yields the scalar string of a name in each packed example, in order, as bytes.

    Args:
        packed: path of a folder packed by `pack_examples`.
        name: string.

    Raises:
        FileNotFoundError, ValueError: see `shuffled_batches`.

    >>> import tempfile
    >>> examples = tf.data.Dataset.from_tensor_slices({"x": ["a", "b"]})
    >>> list(packed_strings(pack_examples(examples, tempfile.mkdtemp()), "x"))
    [b'a', b'b']
    """
    source = _source(shards.read_finished(packed, "examples"), packed)
    for number in range(len(source)):
        yield tf.train.Example.FromString(source[number]).features.feature[name].bytes_list.value[0]


def _source(manifest, packed):
    """Returns the records of a packed folder."""
    with extras.needed("train", "Reading packed examples"):
        from array_record.python.array_record_data_source import ArrayRecordDataSource

    # Given their numbers of records, the files need not be opened in advance.
    return ArrayRecordDataSource(
        [f"{Path(packed, shard['file'])}[0:{shard['items']}]" for shard in manifest["shards"]]
    )


def shuffled_batches(packed, batch_size, seed=0, first_batch=0, share=(0, 1), chosen=None):
    """Returns endless batches of packed examples, in the order of `batches_of_numbers`.

    Args:
        packed: path of a folder packed by `pack_examples`.
        batch_size, seed, first_batch, share: see `order.batches_of_numbers`.
        chosen: int array, the indices of the examples to read. Defaults to None, for all.

    Returns:
        `tf.data.Dataset` of dictionaries of tensors `[batch_size / workers, ...]`.

    Raises:
        FileNotFoundError: if the folder holds no packed examples, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if packing is incomplete, or if a file is damaged.

    >>> import tempfile
    >>> examples = tf.data.Dataset.range(3).map(lambda x: {"x": x})
    >>> packed = pack_examples(examples, tempfile.mkdtemp())
    >>> batches = shuffled_batches(packed, batch_size=3).take(2).as_numpy_iterator()
    >>> [sorted(batch["x"].tolist()) for batch in batches]
    [[0, 1, 2], [0, 1, 2]]
    """
    manifest = shards.read_finished(packed, "examples")
    source = _source(manifest, packed)
    chosen = np.arange(len(source)) if chosen is None else np.asarray(chosen)
    tensors = manifest["contents"]["tensors"]
    features = {
        name: tf.io.FixedLenFeature(x["shape"] if x["dtype"] == "string" else [], tf.string)
        for name, x in tensors.items()
    }

    def read(numbers):
        return np.array(source.__getitems__(chosen[numbers].tolist()), dtype=object)

    def batch(numbers):
        records = tf.ensure_shape(tf.numpy_function(read, [numbers], tf.string), numbers.shape)
        values = tf.io.parse_example(records, features)
        return {name: _decoded(values[name], **tensors[name]) for name in tensors}

    numbers = batches_of_numbers(len(chosen), batch_size, seed, first_batch, share)
    return numbers.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _decoded(values, dtype, shape):
    """Decodes tensors from their bytes, `[batch]`; strings are kept."""
    if dtype == "string":
        return values
    return tf.reshape(tf.io.decode_raw(values, dtype), [values.shape[0], *shape])
