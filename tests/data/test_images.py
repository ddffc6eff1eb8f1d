import io

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import (
    evaluation_images,
    load_images,
    pack_examples,
    training_images,
)
from rt_keras.layers import LocalHeads
from rt_keras.models import RoutingTransformerImageBackbone, RoutingTransformerImageLM
from tests.data.checks import write_set


def random_images(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, [count, *shape], dtype="uint8")


def write_labelled(name, folder, shape, count=20):
    """Returns images with distinct first values; a label is that value modulo 10."""
    images = random_images(count, shape)
    images[:, 0, 0, 0] = np.arange(count)
    examples = [{"image": image, "label": number % 10} for number, image in enumerate(images)]
    for number, example in enumerate(examples):
        if name == "cifar10":
            example["id"] = str(number)
    write_set(name, folder, {"train": examples, "test": examples[:3]})
    return images


def number_of(example):
    return int(example["images"][0, 0, 0])


@pytest.mark.parametrize(
    "name, shape",
    [("cifar10", (32, 32, 3)), ("mnist", (28, 28, 1)), ("fashion_mnist", (28, 28, 1))],
)
def test_sets_with_classes(name, shape, tmp_path):
    written = write_labelled(name, tmp_path, shape)
    splits = {
        split: list(load_images(name, split, tmp_path).as_numpy_iterator())
        for split in ("train", "validation", "test")
    }
    assert {split: len(images) for split, images in splits.items()} == {
        "train": 18,
        "validation": 2,
        "test": 3,
    }
    held_in = splits["train"] + splits["validation"]
    assert sorted(map(number_of, held_in)) == list(range(20))
    for example in held_in + splits["test"]:
        np.testing.assert_array_equal(example["images"], written[number_of(example)])
        assert example["labels"] == number_of(example) % 10
    assert load_images(name, "train", tmp_path).element_spec == {
        "images": tf.TensorSpec(shape, tf.uint8),
        "labels": tf.TensorSpec([], tf.int32),
    }
    again = list(load_images(name, "train", tmp_path).as_numpy_iterator())
    assert list(map(number_of, again)) == list(map(number_of, splits["train"]))


def test_downsampled_imagenet(tmp_path):
    images = random_images(3, (64, 64, 3))
    # Image files in the layout of the download.
    files = [{"image": io.BytesIO(tf.io.encode_png(image).numpy())} for image in images]
    write_set("downsampled_imagenet/64x64", tmp_path, {"train": files[:2], "validation": files[2:]})
    train = list(load_images("downsampled_imagenet", "train", tmp_path).as_numpy_iterator())
    (held_out,) = load_images("downsampled_imagenet", "validation", tmp_path).as_numpy_iterator()
    assert len(train) == 2
    np.testing.assert_array_equal(held_out["images"], images[2])
    spec = load_images("downsampled_imagenet", "train", tmp_path).element_spec
    assert spec == {"images": tf.TensorSpec([64, 64, 3], tf.uint8)}
    with pytest.raises(ValueError, match="for downsampled_imagenet. Received: split='test'"):
        load_images("downsampled_imagenet", "test", tmp_path)


def test_no_such_set(tmp_path):
    with pytest.raises(ValueError, match="cifar10, downsampled_.* Received: name='cifar'"):
        load_images("cifar", "train", tmp_path)


def dataset_of(count, labels=True):
    """Returns images of shape [2, 3, 1] whose values all equal their label."""
    numbers = np.arange(1, count + 1)
    columns = {"images": np.broadcast_to(numbers[:, None, None, None], [count, 2, 3, 1])}
    columns["images"] = columns["images"].astype("uint8")
    if labels:
        columns["labels"] = numbers.astype("int32")
    return tf.data.Dataset.from_tensor_slices(columns)


@pytest.fixture
def packed(tmp_path):
    return pack_examples(dataset_of(5), tmp_path / "packed")


def test_training_batches(packed):
    batches = training_images(packed, 2, seed=1, class_conditional=True)
    ints = tf.TensorSpec([2, 2, 3, 1], tf.int32)
    assert batches.element_spec == (
        {"images": ints, "labels": tf.TensorSpec([2], tf.int32)},
        ints,
        tf.TensorSpec([2, 2, 3, 1], tf.float32),
    )
    seen = []
    for inputs, targets, weights in batches.take(5).as_numpy_iterator():
        np.testing.assert_array_equal(inputs["images"], targets)
        np.testing.assert_array_equal(targets[:, 0, 0, 0], inputs["labels"])
        assert (weights == 1).all()
        seen += inputs["labels"].tolist()
    assert sorted(seen[:5]) == sorted(seen[5:]) == [1, 2, 3, 4, 5]
    again = training_images(packed, 2, seed=1, first_batch=2).take(3).as_numpy_iterator()
    assert [int(image) for _, y, _ in again for image in y[:, 0, 0, 0]] == seen[4:]
    shares = [
        training_images(packed, 2, seed=1, share=(worker, 2), class_conditional=True).take(5)
        for worker in range(2)
    ]
    halves = [[int(x["labels"][0]) for x, _, _ in share.as_numpy_iterator()] for share in shares]
    assert halves == [seen[::2], seen[1::2]]


def test_evaluation_has_every_value_once():
    batches = list(evaluation_images(dataset_of(5), 2).as_numpy_iterator())
    assert [list(inputs) for inputs, _, _ in batches] == [["images"]] * 3
    targets, weights = (np.concatenate([batch[part] for batch in batches]) for part in (1, 2))
    assert targets[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 0]
    assert weights.dtype == "float32" and weights.sum() == 5 * 2 * 3
    assert not weights[5].any()
    (*_, (inputs, _, _)) = evaluation_images(dataset_of(5), 2, class_conditional=True)
    assert inputs["labels"].numpy().tolist() == [5, 0]


def test_labels_that_are_not_there(tmp_path):
    images = dataset_of(2, labels=False)
    for batches, given in (
        (training_images, pack_examples(images, tmp_path)),
        (evaluation_images, images),
    ):
        with pytest.raises(
            ValueError, match="class_conditional must be False for images without labels"
        ):
            batches(given, 1, class_conditional=True)
    with pytest.raises(ValueError, match="batch_size=0"):
        evaluation_images(dataset_of(2), 0)


@pytest.mark.end_to_end
def test_the_image_model_takes_them(packed):
    """With one channel, targets could be mistaken for ones with an extra dimension."""
    keras.utils.set_random_seed(0)
    backbone = RoutingTransformerImageBackbone(
        vocabulary_size=8,
        image_shape=(2, 3, 1),
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        head_groups=[LocalHeads(2, 3)],
        block_shape=(3,),
        num_classes=6,
    )
    model = RoutingTransformerImageLM(backbone)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, jit_compile=False)
    batches = training_images(packed, 2, class_conditional=True)
    history = model.fit(batches, steps_per_epoch=3, epochs=4, shuffle=False, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    nats = 0.0
    for inputs, targets, weights in evaluation_images(dataset_of(5), 2, class_conditional=True):
        logits = model(inputs).numpy().astype("float64")
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        chosen = np.take_along_axis(logits, targets.numpy()[..., None], axis=-1)[..., 0]
        nats -= (chosen * weights.numpy()).sum()
    # Keras divides by the number of all positions, including those of weight 0.
    expected = model.evaluate(
        evaluation_images(dataset_of(5), 2, class_conditional=True), verbose=0
    )
    np.testing.assert_allclose(expected * 6 * 6, nats, rtol=1e-5)
