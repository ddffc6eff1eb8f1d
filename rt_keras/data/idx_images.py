"""A folder of images in the IDX format of MNIST as a TensorFlow dataset."""

import gzip
import math
import re
import struct
import zlib

import numpy as np

from rt_keras import extras
from rt_keras.data.folder_files import one_file_each, wrong_folder
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
        found = one_file_each(
            self.directory, FILE, lambda x: (x["split"].replace("t10k", "test"), x["content"])
        )
        files = {
            split: [found[split, x] for x in ("images", "labels") if (split, x) in found]
            for split in SPLITS
            if (split, "images") in found
        }
        if not files:
            problem = "directory must hold files like train-images-idx3-ubyte"
            raise wrong_folder(problem, self.directory)
        if len({len(names) for names in files.values()}) > 1:
            lists = [f"{split}: {', '.join(names)}" for split, names in files.items()]
            raise ValueError(
                f"{self.directory} must have labels for all splits or for none. It has "
                f"{'; '.join(lists)}"
            )
        first, *labels = next(iter(files.values()))
        with self._open(first) as file:
            shape = read_shape(file, self.directory / first, (3, 4))
        self.image_shape = (*shape[1:], 1)[:3]
        self.features = {"image": tfds.features.Tensor(shape=self.image_shape, dtype=np.uint8)}
        if labels:
            self.features["label"] = np.int64
        return files

    def _open(self, name):
        path = self.directory / name
        return gzip.open(path) if path.suffix == ".gz" else path.open("rb")

    def _generate_examples(self, split):
        names = self.files[split]
        images, *labels = (self._read(name, x) for name, x in zip(names, ((3, 4), (1,))))
        if (*images.shape[1:], 1)[:3] != self.image_shape:
            raise ValueError(
                f"{self.directory / names[0]} has images of {_in_words(images.shape[1:])}, and "
                f"{next(iter(self.files.values()))[0]} of {_in_words(self.image_shape)}; they must "
                "be of one size"
            )
        if labels and len(labels[0]) != len(images):
            raise ValueError(
                f"{self.directory / names[1]} has {len(labels[0]):,} labels for the "
                f"{len(images):,} images of {names[0]}"
            )
        for number, image in enumerate(images.reshape(-1, *self.image_shape)):
            classes = [("label", int(x[number])) for x in labels]
            yield number, {"image": image, **dict(classes)}

    def _read(self, name, dimensions):
        """Returns the array in a file."""
        path = self.directory / name
        with self._open(name) as file:
            shape = read_shape(file, path, dimensions)
            try:
                content = file.read()
            except (EOFError, OSError, zlib.error) as error:
                raise ValueError(f"{path} is truncated or damaged ({error})") from None
        if len(content) != math.prod(shape):
            raise ValueError(
                f"{path} is truncated or damaged: it must have {math.prod(shape):,} bytes after "
                f"its header and has {len(content):,}"
            )
        return np.frombuffer(content, np.uint8).reshape(shape)


def read_shape(file, path, dimensions):
    """Reads the header of an IDX file.

    Args:
        file: binary file, at its beginning.
        path: its path, for error messages.
        dimensions: tuple of ints, the allowed numbers of dimensions.

    Returns:
        Tuple of ints, the shape of the array that follows.

    Raises:
        ValueError: if it is no such file.
    """
    try:
        zero, kind, count = struct.unpack(">HBB", file.read(4))
        if zero or kind != UNSIGNED_BYTE:
            raise ValueError(f"{path} is not an IDX file of unsigned bytes")
        shape = struct.unpack(f">{count}I", file.read(4 * count))
    except (EOFError, OSError, zlib.error, struct.error):
        raise ValueError(f"{path} is truncated, or not an IDX file") from None
    if count not in dimensions:
        allowed = " or ".join(map(str, dimensions))
        raise ValueError(
            f"{path} has {count} dimensions; it must have {allowed}: are its labels and images "
            "exchanged?"
        )
    return shape


def _in_words(shape):
    return " x ".join(map(str, shape))
