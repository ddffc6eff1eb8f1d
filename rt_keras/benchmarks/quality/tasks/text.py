"""Text, byte by byte: the source of Python's standard library, or a folder of texts."""

import functools

import numpy as np

from rt_keras.benchmarks.quality.tasks.task import Task

# Bytes that make up the context of a match, with the byte to predict.
MATCH = 5


class Text(Task):
    """The next byte of a text, and how far back it could have been found.

    Windows are drawn at random places of all files of a split, one after another, each ended by a
    byte 0. Held-out ones are of the split "validation". The loss is divided by where the byte to
    predict and the 4 bytes before it last stood together in the sequence:

    - "near": at most a window of local heads back;
    - "far": only further back;
    - "new": nowhere before.

    Args:
        length: int of at least 8. Defaults to None, for 2,048.
        directory: string, a folder laid out as `rt_keras.data.text_folder` takes it. Defaults to
            None, for the source of Python's standard library.

    Raises:
        ValueError: if the length is too small, or a split has no window of it.
    """

    name = "text"
    default_length = 2048
    least_length = 8
    vocabulary_size = 256
    score = "loss"
    group_names = ("near", "far", "new")

    def __init__(self, length=None, directory=None):
        super().__init__(length, directory)
        self.scored = self.length

    def sample(self, rng, batch, held_out):
        text = read(self.directory, "validation" if held_out else "train")
        if len(text) <= self.length:
            raise ValueError(
                f"--length must be less than the {len(text):,} bytes of the texts. Received: "
                f"{self.length}"
            )
        starts = rng.integers(len(text) - self.length, size=[batch, 1])
        windows = text[starts + np.arange(self.length + 1)]
        return windows[:, :-1], windows[:, 1:], np.ones([batch, self.length])

    def groups(self, tokens, targets, window):
        near, far, new = range(3)
        distances = np.stack([match_distances(row) for row in match_codes(tokens, targets)])
        found = np.where(distances <= window, near, far)
        return np.where(distances == 0, new, found)


def match_codes(tokens, targets):
    """A number for each target and the bytes before it, equal if all of them are.

    Args:
        tokens: int array `[batch, length]` of bytes.
        targets: int array `[batch, length]`, the byte after each.

    Returns:
        Int array `[batch, length]`. The first positions, with too few bytes before their target,
        have negative numbers, all different.

    >>> import numpy as np
    >>> bytes_of = np.frombuffer(b"abcde, abcde", np.uint8)[None]
    >>> codes = match_codes(bytes_of[:, :-1], bytes_of[:, 1:])[0]
    >>> bool(codes[3] == codes[10]), codes[:3].tolist()
    (True, [-1, -2, -3])
    """
    codes, length = targets.astype(np.int64), tokens.shape[1]
    for back in range(MATCH - 1):
        earlier = np.pad(tokens.astype(np.int64), [[0, 0], [back, 0]])[:, :length]
        codes += earlier << 8 * (back + 1)
    codes[:, : MATCH - 2] = -np.arange(1, MATCH - 1)
    return codes


def match_distances(codes):
    """How far back each number last stood; 0 if nowhere.

    Args:
        codes: int array `[length]`.

    Returns:
        Int array `[length]`.

    >>> import numpy as np
    >>> match_distances(np.array([7, 8, 7, 7])).tolist()
    [0, 0, 2, 1]
    """
    order = np.argsort(codes, kind="stable")
    same = np.diff(codes[order]) == 0
    distances = np.zeros_like(codes)
    distances[order[1:]] = np.diff(order) * same
    return distances


@functools.lru_cache
def read(directory, split):
    """The bytes of all files of a split, each ended by a byte 0.

    Args:
        directory: string, the folder; None for the source of Python's standard library.
        split: "train" or "validation".

    Returns:
        `numpy.ndarray` of uint8.

    Raises:
        FileNotFoundError: if the folder does not exist or holds no `.txt` file.
        ValueError: if the split has no files.
    """
    from rt_keras.data.python_source import PythonSource
    from rt_keras.data.text_folder import TextFolder

    builder = PythonSource() if directory is None else TextFolder(directory)
    if split not in builder.files:
        raise ValueError(
            f"--directory must hold texts for {split}. Received: {directory}, with texts for "
            f"{', '.join(builder.files)}"
        )
    files = (builder.directory / name for name in builder.files[split])
    return np.frombuffer(b"".join(file.read_bytes() + b"\0" for file in files), np.uint8)
