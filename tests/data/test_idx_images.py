import gzip
import struct

import numpy as np
import pytest

from rt_keras.data import IdxImages, load_images


def write_idx(path, array, kind=8):
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    content = header + array.astype("uint8").tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def images_of(count, shape=(4, 5)):
    """Returns random images, the first value of each is its number."""
    images = np.random.default_rng(0).integers(256, size=[count, *shape])
    images[:, 0, 0] = np.arange(count).reshape(-1, *[1] * (len(shape) - 2))
    return images


def write_folder(folder, end="", labels=True, shape=(4, 5)):
    """Returns the images of training. A label is the first value modulo 3."""
    folder.mkdir(exist_ok=True)
    images = images_of(20, shape)
    for name, part in (("train", images), ("t10k", images[:3])):
        write_idx(folder / f"{name}-images-idx3-ubyte{end}", part)
        if labels:
            write_idx(folder / f"{name}-labels-idx1-ubyte{end}", np.arange(len(part)) % 3)
    return images


def loaded(folder, split, data_dir):
    return list(load_images("idx_images", split, data_dir, folder).as_numpy_iterator())


@pytest.mark.parametrize("end", ["", ".gz"])
def test_images_and_labels_are_those_of_the_files(end, tmp_path):
    written = write_folder(tmp_path / "idx", end)
    splits = [loaded(tmp_path / "idx", x, tmp_path) for x in ("train", "validation", "test")]
    assert list(map(len, splits)) == [18, 2, 3]
    for example in sum(splits, []):
        number = example["images"][0, 0, 0]
        assert example["labels"] == number % 3
        np.testing.assert_array_equal(example["images"][..., 0], written[number])


def test_channels_a_split_for_validation_and_no_labels(tmp_path):
    folder = tmp_path / "idx"
    write_folder(folder, labels=False, shape=(4, 5, 3))
    write_idx(folder / "our-validation-images-idx4-ubyte", images_of(4, (4, 5, 3)))
    train, validation = (loaded(folder, x, tmp_path) for x in ("train", "validation"))
    assert (len(train), len(validation)) == (20, 4)
    assert train[0].keys() == {"images"} and train[0]["images"].shape == (4, 5, 3)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("train-images-idx3-ubyte", 100, "truncated or damaged: it must have 400"),
        ("train-images-idx3-ubyte", 3, "train-images-idx3-ubyte is truncated or"),
        ("train-images-idx3-ubyte", np.arange(20), "has 1 dimensions; it must have 3 or 4: are"),
        ("train-labels-idx1-ubyte", np.arange(19), "has 19 labels for the 20 images of train-im"),
        ("t10k-images-idx3-ubyte", images_of(3, (5, 5)), "images of 5 x 5, and train-.* of 4 x 5"),
        ("t10k-labels-idx1-ubyte", 0, "labels for all splits or for none"),
        ("b-train-images-idx3-ubyte.gz", np.arange(9), "one file of train images, not b-train-"),
    ],
)
def test_folders_that_are_damaged_are_refused(name, content, message, tmp_path):
    folder = tmp_path / "idx"
    write_folder(folder)
    if not isinstance(content, int):
        write_idx(folder / name, content)
    elif content:
        (folder / name).write_bytes((folder / name).read_bytes()[:content])
    else:
        (folder / name).unlink()
    with pytest.raises(ValueError, match=message):
        loaded(folder, "train", tmp_path)


def test_other_numbers_truncated_compressed_files_and_folders_without_images(tmp_path):
    folder = tmp_path / "idx"
    write_folder(folder, ".gz")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is truncated or damaged"):
        loaded(folder, "train", tmp_path)
    write_idx(path, images_of(20), 13)
    with pytest.raises(ValueError, match="of unsigned bytes"):
        loaded(folder, "train", tmp_path)
    with pytest.raises(FileNotFoundError, match="must hold files like train-images-idx3-ubyte"):
        IdxImages(tmp_path)
