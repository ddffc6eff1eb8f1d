"""The input pipeline of a language model on its own: from text files to batches of tokens."""

import tempfile
from pathlib import Path

import tensorflow as tf

from rt_keras.data import ByteTokenizer, load_documents, training_dataset

FILES = 32
BYTES = 2**19
# The maximum number of batches in a run, as a pass over the files has many small ones.
MOST = 2048


def tokens_of_a_run(length, batch):
    """The number of tokens in one run: a pass over the files, but at most `MOST` batches.

    Args:
        length: int, the number of tokens in a sequence.
        batch: int, the number of sequences in a batch.

    >>> tokens_of_a_run(length=8192, batch=1) == 32 * 2**19
    True
    """
    return min(FILES * BYTES // (length * batch), MOST) * length * batch


def prepare(length, batch):
    """Writes text files and makes the function that reads batches of them, as training does.

    Documents are read, shuffled, tokenized into bytes, packed into sequences, and shuffled again. A
    run is a pass over the files, which includes filling the buffers, but at most `MOST` batches.

    Args:
        length: int, the number of tokens in a sequence.
        batch: int, the number of sequences in a batch.

    Returns:
        A function without arguments that returns the number of tokens that it has read.
    """
    folder = tempfile.TemporaryDirectory()  # Deleted together with the function that holds it.
    text = Path(folder.name, "text", "train")
    text.mkdir(parents=True)
    for i in range(FILES):
        line = f"{i}: The quick brown fox jumps over the lazy dog.\n"
        (text / f"{i}.txt").write_text((line * (BYTES // len(line) + 1))[:BYTES])
    documents = load_documents(
        "text_folder", "train", directory=text.parent, data_dir=Path(folder.name, "prepared")
    )
    batches = iter(training_dataset(documents, ByteTokenizer(), length, batch))
    count = tokens_of_a_run(length, batch) // (length * batch)

    def run(held=folder):
        for _ in range(count):
            inputs, _, _ = next(batches)
        return int(tf.size(inputs["token_ids"])) * count

    return run
