"""Examples such as images or pairs of texts, packed so that any of them can be read at once.

The files are in the format ArrayRecord, which has an index of its records. A record is a
`tf.train.Example` with the bytes of each tensor.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from rt_keras import extras
from rt_keras.data import shards
from rt_keras.data.order import batches_of_numbers

# Bytes in a file before compression: as many as may be held in memory, and lost if packing is
# interrupted.
SHARD_BYTES = 2**28


def pack_examples(examples, folder, identity=None):
    """Writes examples to the files of a folder, for `training_pairs` or `training_images`.

    Packing goes on where it was interrupted, does nothing if it has been done, and waits for
    another process that packs into the same folder. A file that is missing or too short is written
    again.

    Args:
        examples: `tf.data.Dataset` of dictionaries of tensors in a fixed order, as from
            `load_pairs` or `load_images`: strings, or numbers whose shape is the same in all.
        folder: string or `Path`, the folder to write to or to go on in.
        identity: JSON value that says which examples these are, such as a name and a version. A
            folder packed with another identity is refused. Defaults to None.

    Returns:
        The `Path` of the folder.

    Raises:
        ValueError: if there are no examples, if a tensor is neither a string nor of a fixed shape,
            or if the folder holds something else or its manifest is damaged.
        OSError: if the disk is full.

    Example:

    >>> import tempfile
    >>> pairs = tf.data.Dataset.from_tensors({"encoder_text": "four", "decoder_text": "4"})
    >>> packed = pack_examples(pairs, tempfile.mkdtemp())
    >>> sorted(path.name for path in packed.iterdir())
    ['.lock', '00000.array_record', 'manifest.json']
    """

    def read(first):
        ready = examples.skip(first).prefetch(tf.data.AUTOTUNE)
        return map(_record, ready.as_numpy_iterator())

    contents = {
        "unit": "examples",
        "tensors": {name: _described(name, x) for name, x in examples.element_spec.items()},
        "identity": identity,
    }
    count = int(examples.cardinality())
    return shards.write(folder, contents, read, _save, ".array_record", SHARD_BYTES, count)


def _described(name, spec):
    """The type and the shape of a tensor as JSON."""
    if not spec.shape.is_fully_defined() or (spec.dtype == tf.string and spec.shape.rank):
        raise ValueError(
            f"examples must have strings and tensors of one shape. Received: {name!r} of shape "
            f"{spec.shape} and type {spec.dtype.name}"
        )
    return {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}


def _record(example):
    values = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[_bytes(value)]))
        for name, value in example.items()
    }
    features = tf.train.Features(feature=values)
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def _bytes(value):
    return value if isinstance(value, bytes) else value.tobytes()


def _save(path, records):
    with extras.needed("train", "Packing examples"):
        from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    try:
        for record in records:
            writer.write(record)
    finally:
        writer.close()


def shuffled_batches(packed, batch_size, seed=0, first_batch=0, share=(0, 1)):
    """Endless batches of packed examples; see `rt_keras.data.order` for their order.

    Args:
        packed: folder that `pack_examples` filled.
        batch_size, seed, first_batch, share: see `order.batches_of_numbers`.

    Returns:
        `tf.data.Dataset` of dictionaries of tensors `[batch_size / workers, ...]`.

    Raises:
        FileNotFoundError: if the folder holds no packed examples, or lacks a file.
        ValueError: if a number is out of range, if the workers do not divide `batch_size`, or if
            examples were not packed to the end or a file is damaged.

    >>> import tempfile
    >>> examples = tf.data.Dataset.range(3).map(lambda x: {"x": x})
    >>> packed = pack_examples(examples, tempfile.mkdtemp())
    >>> batches = shuffled_batches(packed, batch_size=3).take(2).as_numpy_iterator()
    >>> [sorted(batch["x"].tolist()) for batch in batches]
    [[0, 1, 2], [0, 1, 2]]
    """
    with extras.needed("train", "Reading packed examples"):
        from array_record.python.array_record_data_source import ArrayRecordDataSource

    manifest = shards.read_finished(packed, "examples")
    count = sum(shard["items"] for shard in manifest["shards"])
    # With their numbers, the files need not be opened before they are read.
    paths = [f"{Path(packed, s['file'])}[0:{s['items']}]" for s in manifest["shards"]]
    source = ArrayRecordDataSource(paths)
    tensors = manifest["contents"]["tensors"]
    features = dict.fromkeys(tensors, tf.io.FixedLenFeature([], tf.string))

    def read(numbers):
        return np.array(source.__getitems__(numbers.tolist()), dtype=object)

    def batch(numbers):
        records = tf.ensure_shape(tf.numpy_function(read, [numbers], tf.string), numbers.shape)
        found = tf.io.parse_example(records, features)
        return {name: _tensor(found[name], **tensors[name]) for name in tensors}

    numbers = batches_of_numbers(count, batch_size, seed, first_batch, share)
    return numbers.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _tensor(values, dtype, shape):
    """Tensors from their bytes, `[batch]`."""
    if dtype == "string":
        return values
    return tf.reshape(tf.io.decode_raw(values, dtype), [values.shape[0], *shape])
