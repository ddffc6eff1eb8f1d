"""The input of a language model without the model: text files to batches of tokens."""

import tempfile
from pathlib import Path

import tensorflow as tf

from rt_keras.data import ByteTokenizer, load_documents, training_dataset

FILES = 32
BYTES = 2**19
# Batches that a run has at most: of small ones a pass over the files has very many.
MOST = 2048


def tokens_of_a_run(length, batch):
    """Tokens that one run of what `prepare` makes takes in: a pass, or `MOST` batches.

    >>> tokens_of_a_run(length=8192, batch=1) == 32 * 2**19
    True
    """
    return min(FILES * BYTES // (length * batch), MOST) * length * batch


def prepare(length, batch):
    """Writes text files and makes the function that reads batches of them, as training does.

    Documents are read, shuffled, taken to tokens (bytes), packed into sequences, and these shuffled
    again. A run is as many batches as a pass over the files has, so that it pays for the filling of
    the buffers too; but no more than `MOST`.

    Args:
        length: tokens in a sequence.
        batch: sequences in a batch.

    Returns:
        A function without arguments. It returns how many batches it has read.
    """
    folder = tempfile.TemporaryDirectory()  # It goes when the function that holds it does.
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
