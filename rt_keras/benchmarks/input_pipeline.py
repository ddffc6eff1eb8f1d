"""The input pipeline of a language model: from text files to batches of tokens."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from rt_keras.data import ByteTokenizer, load_documents, pack_documents, shards, training_dataset
from rt_keras.data.packing import SHARD_TOKENS

FILES = 32
BYTES = 2**19
# The maximum number of batches per run: a pass over the files has many if they are small.
MOST = 2048


def tokens_of_a_run(length, batch):
    """Returns the number of tokens per run: a pass over the files, but at most `MOST` batches.

    Args:
        length: int, the number of tokens in a sequence.
        batch: int, the number of sequences in a batch.

    >>> tokens_of_a_run(length=8192, batch=1) == 32 * 2**19
    True
    """
    return min(FILES * BYTES // (length * batch), MOST) * length * batch


def prepare(length, batch):
    """Packs text files and makes a function that reads batches of them, as training does.

    Sequences start at random positions of the packed files. A run is a pass over the files, but at
    most `MOST` batches.

    Args:
        length: int, the number of tokens in a sequence.
        batch: int, the number of sequences in a batch.

    Returns:
        A function without arguments that returns the number of tokens read.
    """
    folder = tempfile.TemporaryDirectory()  # Deleted together with the function that holds it.
    packed = pack_documents(_documents(folder.name), ByteTokenizer(), Path(folder.name, "packed"))
    batches = iter(training_dataset(packed, length, batch))
    count = tokens_of_a_run(length, batch) // (length * batch)

    def run(held=folder):
        for _ in range(count):
            inputs, _, _ = next(batches)
        return int(tf.size(inputs["token_ids"])) * count

    return run


def prepare_packing():
    """Writes text files and makes a function that packs them, each time into a new folder.

    Returns:
        A function without arguments that returns the number of tokens packed.
    """
    folder = tempfile.TemporaryDirectory()  # Deleted together with the function that holds it.
    documents = _documents(folder.name)
    numbers = itertools.count()

    def run(held=folder):
        packed = Path(folder.name, str(next(numbers)))
        pack_documents(documents, ByteTokenizer(), packed)
        return FILES * (BYTES + 1)

    return run


def prepare_start(gigabytes, step, length, batch):
    """Makes large packed files and a function that starts to read them at a step.

    The files are sparse: they have the given size but take no disk space. The tokens affect neither
    the position where training starts nor the checks before it.

    Args:
        gigabytes: int, the total size of the files.
        step: int, the index of the first batch.
        length: int, the number of tokens in a sequence.
        batch: int, the number of sequences in a batch.

    Returns:
        A function without arguments that returns the number of tokens of the first batch.
    """
    folder = tempfile.TemporaryDirectory()  # Deleted together with the function that holds it.
    _write_sparse(Path(folder.name), gigabytes * 10**9)

    def run(held=folder):
        batches = training_dataset(folder.name, length, batch, first_batch=step)
        inputs, _, _ = next(iter(batches))
        return int(tf.size(inputs["token_ids"]))

    return run


def _documents(folder):
    text = Path(folder, "text", "train")
    text.mkdir(parents=True)
    for i in range(FILES):
        line = f"{i}: The quick brown fox jumps over the lazy dog.\n"
        (text / f"{i}.txt").write_text((line * (BYTES // len(line) + 1))[:BYTES])
    return load_documents("text_folder", "train", text.parent, Path(folder, "prepared"))


def _write_sparse(folder, size):
    """Writes a packed folder of about `size` bytes, all 0, that takes no disk space."""
    files = []
    for place in range(max(1, size // (2 * SHARD_TOKENS))):
        path = folder / f"{place:05}.npy"
        np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(SHARD_TOKENS,))
        entry = {"file": path.name, "bytes": path.stat().st_size, "sha256": None}
        files.append({**entry, "items": 1, "length": SHARD_TOKENS})
    contents = {"unit": "documents", "dtype": "uint16", "end_token_id": 1, "pad_token_id": 0}
    shards.write_manifest(folder, {"contents": contents, "finished": True, "shards": files})
