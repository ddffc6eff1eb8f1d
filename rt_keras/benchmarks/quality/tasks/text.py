"""Text as bytes: the source of Python's standard library, or a folder of texts."""

import functools

import numpy as np

from rt_keras.benchmarks.quality.tasks.task import Task

# Number of bytes in a match, including the byte to predict.
MATCH = 5


class Text(Task):
    """The next byte of a text, with losses grouped by the distance of its last match.

    Sequences start at random positions in the concatenated files of a split, with a byte 0 after
    each file. Held-out sequences come from the split "validation". The loss is grouped by the last
    position in the sequence where the byte to predict followed the same 4 bytes:

    - "near": within the window of local heads;
    - "far": further back;
    - "new": nowhere.

    Args:
        length: int, at least 8. Defaults to None, for 2,048.
        directory: string, a folder with the layout of `rt_keras.data.text_folder`. Defaults to
            None, for the source of Python's standard library.

    Raises:
        ValueError: if the length is too small, or the bytes of a split are too few for it.
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
    """Returns a code of each target and the bytes before it, equal if the bytes are equal.

    Args:
        tokens: int array `[batch, length]` of bytes.
        targets: int array `[batch, length]`, the byte after each.

    Returns:
        Int array `[batch, length]`. The first positions, with too few bytes before their target,
        have distinct negative codes.

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
    """Returns the distance to the last occurrence of each code, or 0 if there is none.

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
    """Reads the bytes of all files of a split, with a byte 0 after each file.

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
