"""Tensors of safetensors files, each read when it is needed."""

import json
import mmap
import re
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import tensorflow as tf

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
# Alignment of TensorFlow's tensors in bytes.
ALIGNMENT = 64
# Tensors that are computed, and output heads of encoders.
BUFFERS = re.compile(r".*rotary_emb\.inv_freq|.*\.attn\.(masked_)?bias|.*(position|token_type)_ids")
HEADS = re.compile(
    r"(.*\.)?(cls|lm_head|pre_classifier|classifier|classification_head|score|qa_outputs|pooler"
    r"|vocab_(transform|layer_norm|projector))\..*"
)
# The token embeddings, and tensors that share their values.
EMBEDDINGS = re.compile(r"(.*\.)?(embed_tokens|shared|wte|word_embeddings)\.weight")
TIED = re.compile(r"(.*\.)?(embed_tokens|lm_head)\.weight")
# Number of bytes that are copied from a file at once.
SLICE = 2**25


class TensorFiles:
    """The tensors of a model in one or several safetensors files.

    The constructor checks all files and reads their headers. Tensors are read later.

    Args:
        paths: list of paths.

    Raises:
        ValueError: if a file is truncated or otherwise damaged.
    """

    def __init__(self, paths):
        self.paths, self.tensors = [Path(path) for path in paths], {}
        self.names_read = set()
        for path in self.paths:
            start, header = _header(path)
            self.tensors |= {name: (path, start, entry) for name, entry in header.items()}

    def read(self, name):
        """Returns a tensor as an array that maps its part of the file while it is in use.

        A mapping of the whole file would keep everything that was read from it in memory.
        """
        if name not in self.tensors:
            files = ", ".join(map(str, self.paths))
            raise ValueError(f"{files}: there is no tensor {name}, which the model needs")
        self.names_read.add(name)
        path, start, entry = self.tensors[name]
        begin, end = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        if begin == end:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, mode="r", offset=start + begin, shape=shape)


def check_all_read(files, has_head):
    """Checks that a model has got all tensors of its files. Warns of heads that it leaves out.

    Args:
        files: `TensorFiles`, from which the model was read.
        has_head: bool, whether the model has the output head of the files.

    Raises:
        ValueError: if the model has no place for a tensor that is not a copy of another one.
    """
    embeddings = [name for name in files.names_read if EMBEDDINGS.fullmatch(name)]
    left = [
        name
        for name in sorted(files.tensors.keys() - files.names_read)
        if not BUFFERS.fullmatch(name) and not _is_copy(files, name, embeddings)
    ]
    heads = [name for name in left if HEADS.fullmatch(name)]
    if left and left == heads and not has_head:
        warnings.warn(f"The model is loaded without its head: {', '.join(heads)}", stacklevel=2)
    elif left:
        others = f" and {len(left) - 4} more" if len(left) > 4 else ""
        raise ValueError(
            f"{files.paths[0].parent}: the model has no place for the tensors "
            f"{', '.join(left[:4])}{others}"
        )


def _is_copy(files, name, embeddings):
    """Returns whether a tensor is a copy of the token embeddings, or has only zeros."""
    if name.endswith("final_logits_bias"):
        return not files.read(name).any()
    return TIED.fullmatch(name) and any(
        np.array_equal(files.read(name), files.read(other)) for other in embeddings
    )


def as_tensor(array, dtype):
    """Converts an array to a tensor and needs no memory beyond that of the tensor.

    `tf.convert_to_tensor` copies an array twice, and keeps one of the copies for a while. Data read
    from a mapped file count as memory until the mapping drops them.

    Args:
        array: array, such as a view of an array returned by `TensorFiles.read`.
        dtype: string, dtype of the tensor.

    Returns:
        A tensor.

    >>> as_tensor(np.eye(2), "bfloat16").numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    dtype = tf.as_dtype(dtype)
    size = array.size * dtype.size
    # TensorFlow shares the memory of arrays with its own alignment.
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    memory = memory[start : start + size]
    target = np.atleast_1d(memory.view(dtype.as_numpy_dtype).reshape(array.shape))
    source = mapping = np.atleast_1d(array)
    while isinstance(mapping, np.ndarray):
        mapping = mapping.base
    rows = max(1, SLICE // max(1, source[:1].nbytes))
    for start in range(0, len(source), rows):
        target[start : start + rows] = source[start : start + rows]
        if isinstance(mapping, mmap.mmap):
            mapping.madvise(mmap.MADV_DONTNEED)
    tensor = tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
    shape = [*array.shape, dtype.size]
    return tf.bitcast(tf.reshape(tensor, shape if dtype.size > 1 else array.shape), dtype)


def _header(path):
    """Returns the offset of the tensors of a file, and its header, which safetensors checks first.

    A file consists of the length of the header in 8 bytes, the header as JSON, and the tensors.
    """
    import safetensors

    try:
        safetensors.safe_open(path, "np")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is truncated, damaged or no safetensors file ({error})") from None
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            needed = f"one of the types {', '.join(DTYPES)}, not {entry['dtype']}"
            raise ValueError(f"{path}: the tensor {name} must have {needed}")
    return 8 + length, header
