"""A folder of images in the IDX format of MNIST as a TensorFlow dataset."""

import gzip
import math
import re
import struct
import zlib

import numpy as np

from rt_keras.data import extras
from rt_keras.data.file_reading import one_file_each, wrong_folder
from rt_keras.data.text_folder import SPLITS, TextFolder

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds

FILE = re.compile(
    r"(?:.+-)?(?P<split>train|validation|t10k|test)-(?P<content>images|labels)[-.]idx\d-ubyte(\.gz)?"
)
# The code of unsigned bytes in a header.
UNSIGNED_BYTE = 8


class IdxImages(TextFolder):
    """Builder of a dataset with the images of a folder in the IDX format of MNIST.

    The file of a split is named like `train-images-idx3-ubyte`, `t10k-images-idx3-ubyte` or
    `test-images-idx3-ubyte`, with anything before it and a hyphen, and may end in `.gz`. It holds
    unsigned bytes of shape `[images, height, width]` or `[images, height, width, channels]`. Files
    named `labels` in the same way, such as `train-labels-idx1-ubyte`, hold the number of the class
    of each image. Either all splits have one or none has. A split without a file does not exist.

    Features: "image", uint8 `[height, width, channels]`; "label", if there are labels.

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder does not exist or has no such file.
        ValueError: if a file is damaged, is not of unsigned bytes or of the wrong number of
            dimensions, if splits differ in the size of their images or in having labels, or if
            there are not as many labels as images.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp(), "digits")
    >>> folder.mkdir()
    >>> header = struct.pack(">HBB3I", 0, UNSIGNED_BYTE, 3, 1, 2, 2)
    >>> _ = (folder / "train-images-idx3-ubyte").write_bytes(header + bytes([0, 1, 2, 3]))
    >>> builder = IdxImages(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for example in tfds.as_numpy(builder.as_dataset(split="train")):
    ...     print(example["image"][..., 0])
    [[0 1]
     [2 3]]
    """

    split_files = "a file like {split}-images-idx3-ubyte"

    def _files_by_split(self):
        names = one_file_each(
            self.directory, FILE, lambda x: (x["split"].replace("t10k", "test"), x["content"])
        )
        files = {
            split: [names[split, x] for x in ("images", "labels") if (split, x) in names]
            for split in SPLITS
            if (split, "images") in names
        }
        if not files:
            problem = "directory must hold files like train-images-idx3-ubyte"
            raise wrong_folder(problem, self.directory)
        if len(set(map(len, files.values()))) > 1:
            problem = f"{self.directory} must have labels for all splits or for none"
            raise ValueError(f"{problem}. It has {', '.join(sum(files.values(), []))}")
        self._first, *labels = next(iter(files.values()))
        shape, _ = self._read(self._first, (3, 4), count=0)
        self.image_shape = (*shape[1:], 1)[:3]
        self.features = {"image": tfds.features.Tensor(shape=self.image_shape, dtype=np.uint8)}
        if labels:
            self.features["label"] = np.int64
        return files

    def _generate_examples(self, split):
        name, *of_labels = self.files[split]
        (count, *shape), pixels = self._read(name, (3, 4))
        if (*shape, 1)[:3] != self.image_shape:
            raise ValueError(
                f"{self.directory / name} has images of {_in_words(shape)}, and {self._first} of "
                f"{_in_words(self.image_shape)}; they must be of one size"
            )
        labels = self._read(of_labels[0], (1,))[1] if of_labels else ()
        if of_labels and len(labels) != count:
            raise ValueError(
                f"{self.directory / of_labels[0]} has {len(labels):,} labels for the {count:,} "
                f"images of {name}"
            )
        for number, image in enumerate(pixels.reshape(-1, *self.image_shape)):
            example = {"image": image}
            if of_labels:
                example["label"] = int(labels[number])
            yield number, example

    def _read(self, name, dimensions, count=-1):
        """Returns the shape of the array in a file and its first `count` values, or all."""
        path = self.directory / name
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                zero, kind, rank = struct.unpack(">HBB", file.read(4))
                shape = struct.unpack(f">{rank}I", file.read(4 * rank))
                content = file.read(count)
        except (EOFError, OSError, zlib.error, struct.error):
            raise ValueError(f"{path} is truncated or damaged, or not an IDX file") from None
        if zero or kind != UNSIGNED_BYTE:
            raise ValueError(f"{path} is not an IDX file of unsigned bytes")
        if rank not in dimensions:
            raise ValueError(
                f"{path} has {rank} dimensions; it must have {' or '.join(map(str, dimensions))}: "
                "are its labels and images exchanged?"
            )
        if count < 0 and len(content) != math.prod(shape):
            raise ValueError(
                f"{path} is truncated or damaged: it must have {math.prod(shape):,} bytes after "
                f"its header and has {len(content):,}"
            )
        return shape, np.frombuffer(content, np.uint8)


def _in_words(shape):
    return " x ".join(map(str, shape))
