import functools
import io

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import evaluation_images, load_images, pack_examples, training_images
from tests.data.checks import check_order, write_set


def random_images(count, shape):
    """Returns images with distinct first values."""
    images = np.random.default_rng(0).integers(0, 256, [count, *shape], dtype="uint8")
    images[:, 0, 0, 0] = np.arange(count)
    return images


def number_of(example):
    return int(example["images"][0, 0, 0])


@pytest.mark.parametrize("name, shape", [("cifar10", (32, 32, 3)), ("mnist", (28, 28, 1))])
def test_sets_with_classes(name, shape, tmp_path):
    written = random_images(20, shape)
    more = {"id": "7"} if name == "cifar10" else {}
    examples = [{"image": x, "label": number % 10, **more} for number, x in enumerate(written)]
    write_set(name, tmp_path, {"train": examples, "test": examples[:3]})
    splits = {x: load_images(name, x, tmp_path) for x in ("train", "validation", "test")}
    assert splits["train"].element_spec == {
        "images": tf.TensorSpec(shape, tf.uint8),
        "labels": tf.TensorSpec([], tf.int32),
    }
    splits = {split: list(images.as_numpy_iterator()) for split, images in splits.items()}
    assert [len(images) for images in splits.values()] == [18, 2, 3]
    held_in = splits["train"] + splits["validation"]
    assert sorted(map(number_of, held_in)) == list(range(20))
    for example in held_in + splits["test"]:
        np.testing.assert_array_equal(example["images"], written[number_of(example)])
        assert example["labels"] == number_of(example) % 10


def test_downsampled_imagenet(tmp_path):
    images = random_images(3, (64, 64, 3))
    # Image files in the layout of the download.
    files = [{"image": io.BytesIO(tf.io.encode_png(image).numpy())} for image in images]
    write_set("downsampled_imagenet/64x64", tmp_path, {"train": files[:2], "validation": files[2:]})
    train = list(load_images("downsampled_imagenet", "train", tmp_path).as_numpy_iterator())
    (held_out,) = load_images("downsampled_imagenet", "validation", tmp_path).as_numpy_iterator()
    assert len(train) == 2
    np.testing.assert_array_equal(held_out["images"], images[2])
    with pytest.raises(ValueError, match="cifar10, downsampled_.* Received: name='cifar'"):
        load_images("cifar", "train", tmp_path)


def dataset_of(count):
    """Returns images of shape [2, 3, 1] whose values all equal their label."""
    numbers = np.arange(1, count + 1, dtype="int32")
    images = np.broadcast_to(numbers[:, None, None, None], [count, 2, 3, 1]).astype("uint8")
    return tf.data.Dataset.from_tensor_slices({"images": images, "labels": numbers})


@pytest.fixture
def packed(tmp_path):
    return pack_examples(dataset_of(5), tmp_path / "packed")


def test_training_batches(packed):
    batches = check_order(functools.partial(training_images, packed, 2, class_conditional=True))
    for inputs, targets, weights in batches.take(5).as_numpy_iterator():
        np.testing.assert_array_equal(inputs["images"], targets)
        np.testing.assert_array_equal(targets[:, 0, 0, 0], inputs["labels"])
        assert (weights == 1).all()


def test_labels_of_an_evaluation_and_labels_that_are_not_there():
    (*_, (inputs, _, _)) = evaluation_images(dataset_of(5), 2, class_conditional=True)
    assert inputs["labels"].numpy().tolist() == [5, 0]
    images = dataset_of(2).map(lambda example: {"images": example["images"]})
    with pytest.raises(ValueError, match="class_conditional must be False for images without lab"):
        evaluation_images(images, 1, class_conditional=True)
