"""Tensors in safetensors files, each read when it is asked for."""

import json
import math
import mmap
from pathlib import Path

import ml_dtypes
import numpy as np
import tensorflow as tf

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
}
# Bytes at whose multiples TensorFlow's tensors start.
ALIGNMENT = 64
# Bytes that are copied from a file at once.
SLICE = 2**25


class TensorFiles:
    """The tensors of a model in one or several safetensors files.

    All headers are read and held against the sizes of their files at once, the tensors later.

    Args:
        paths: list of paths.

    Raises:
        ValueError: if a file is cut short or otherwise damaged.
    """

    def __init__(self, paths):
        self.paths, self.tensors = [Path(path) for path in paths], {}
        for path in self.paths:
            start, header = _header(path)
            self.tensors |= {name: (path, start, entry) for name, entry in header.items()}

    def read(self, name):
        """A tensor, as an array that maps its part of the file as long as it is in use.

        A mapping of the whole file would stay in memory with all that was read from it.
        """
        if name not in self.tensors:
            files = ", ".join(map(str, self.paths))
            raise ValueError(f"{files}: there is no tensor {name}, which the model needs")
        path, start, entry = self.tensors[name]
        begin, end = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        if begin == end:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, mode="r", offset=start + begin, shape=shape)


def as_tensor(array, dtype):
    """An array as a tensor, which takes no more memory than that on the way.

    `tf.convert_to_tensor` copies an array twice, and keeps one of the copies for a while; what is
    read of a mapped file counts as memory until the mapping is told to drop it.

    Args:
        array: array, such as a view of what `TensorFiles.read` returns.
        dtype: string, the type of the tensor.

    Returns:
        A tensor.

    >>> as_tensor(np.eye(2), "bfloat16").numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    dtype = tf.as_dtype(dtype)
    size = array.size * dtype.size
    # TensorFlow shares the memory of arrays that start where it would have let them start.
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    memory = memory[start : start + size]
    target = memory.view(dtype.as_numpy_dtype).reshape(array.shape)
    mapping = _mapping_of(array)
    for part in _slices(array):
        target[part] = array[part]
        if mapping is not None:
            mapping.madvise(mmap.MADV_DONTNEED)
    tensor = tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
    shape = [*array.shape, dtype.size]
    return tf.bitcast(tf.reshape(tensor, shape if dtype.size > 1 else array.shape), dtype)


def _slices(array):
    """Slices of the first axis, of some megabytes each; all at once without an axis."""
    if not array.ndim:
        return [...]
    rows = max(1, SLICE // max(1, array[:1].nbytes))
    return [slice(start, start + rows) for start in range(0, len(array), rows)]


def _mapping_of(array):
    """The mapped file that an array is a view of; None if there is none."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if hasattr(array, "madvise") else None


def _header(path):
    """Where the tensors of a file start, and its header.

    The file is the length of the header in 8 bytes, the header as JSON, and the tensors.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{path} is cut short: it has {size:,} bytes, not even its header")
        try:
            header = dict(json.loads(file.read(length)))
            header.pop("__metadata__", None)
            entries = header.values()
            found = max((entry["data_offsets"][1] for entry in entries), default=0)
            whole = all(_is_whole(entry) for entry in entries)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise ValueError(f"{path} is damaged: it is no safetensors file") from None
    wanted = 8 + length + found
    if size < wanted:
        raise ValueError(f"{path} is cut short: it has {size:,} of {wanted:,} bytes")
    if not whole:
        raise ValueError(
            f"{path} has tensors of other sizes or types than can be read. Types: {list(DTYPES)}"
        )
    return 8 + length, header


def _is_whole(entry):
    """Whether a tensor has as many bytes as its shape and type say."""
    begin, end = entry["data_offsets"]
    dtype = DTYPES.get(entry["dtype"])
    return (
        dtype is not None
        and 0 <= begin <= end
        and end - begin == math.prod(entry["shape"]) * np.dtype(dtype).itemsize
    )
