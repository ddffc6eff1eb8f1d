"""Benchmark data sets of images, and batches for image models."""

import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.data_sets import DataSets, read
from rt_keras.data.examples import shuffled_batches

# Image shape of each set.
SHAPES = {
    "cifar10": (32, 32, 3),
    "downsampled_imagenet": (64, 64, 3),
    "fashion_mnist": (28, 28, 1),
    "mnist": (28, 28, 1),
}
SETS = DataSets(f"one of {', '.join(SHAPES)}, or idx_images", "|".join(SHAPES), ("idx_images",))
# Slices of "train" for sets without a validation split.
HELD_OUT = {"train": "[:90%]", "validation": "[90%:]"}


def load_images(name, split, data_dir=None, directory=None):
    """Loads the images of one split; TensorFlow Datasets downloads the set if needed.

    Args:
        name: "cifar10" (60,000 images of 32x32 in 10 classes), "mnist" (70,000 digits of 28x28),
            "fashion_mnist" (70,000 pieces of clothing of 28x28) or "downsampled_imagenet" (1.33
            million images of 64x64 without classes; if its download is no longer offered,
            `data_dir` must hold a prepared copy); or "idx_images", the images of a folder in the
            format of MNIST, see `IdxImages`.
        split: "train", "validation" or "test". CIFAR-10 and the sets of 28x28 have no validation
            set, so "validation" is the last 10% of their training images (5,000 and 6,000), which
            "train" then excludes; the same applies to a folder without one. ImageNet's test set is
            not public; papers report "validation".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets. Its subfolder `downloads/manual` may hold the downloads of a set.
        directory: path of the folder, for "idx_images" only. Defaults to None.

    Returns:
        `tf.data.Dataset` of dictionaries, in a fixed order: "images", uint8
        `[height, width, channels]`, and, if the set has classes, "labels", int32 scalars.

    Raises:
        ValueError: if there is no such set or split.
        OSError: if the set cannot be downloaded and prepared.

    Source: CIFAR-10: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; MNIST:
    LeCun et al. 1998; ImageNet at 64x64: van den Oord et al. 2016, Pixel Recurrent Neural Networks,
    section 5.

    Example with a prepared set of ten blank digits instead of a download:

    >>> import tempfile
    >>> import tensorflow_datasets as tfds
    >>> folder = tempfile.mkdtemp()
    >>> info = tfds.builder("mnist", data_dir=folder).info
    >>> digit = {"image": tf.zeros([28, 28, 1], tf.uint8), "label": 7}
    >>> digits = {"train": tf.data.Dataset.from_tensors(digit).repeat(10)}
    >>> store = tfds.dataset_builders.store_as_tfds_dataset
    >>> _ = store("mnist", info.version, info.features, digits, data_dir=folder)
    Downloading and preparing dataset ...
    >>> for example in load_images("mnist", "validation", folder):
    ...     print(example["images"].shape, int(example["labels"]))
    (28, 28, 1) 7
    """
    builder = SETS.prepared(name, directory, data_dir)
    if "validation" not in builder.info.splits and split in HELD_OUT:
        examples = read(builder, "train", HELD_OUT[split])
    else:
        examples = read(builder, split)
    shape = SHAPES.get(name) or builder.image_shape

    def image_and_label(example):
        images = {"images": tf.ensure_shape(example["image"], shape)}
        if "label" in example:
            images["labels"] = tf.cast(example["label"], tf.int32)
        return images

    return examples.map(image_and_label, num_parallel_calls=tf.data.AUTOTUNE)


def training_images(
    packed, batch_size, seed=0, first_batch=0, share=(0, 1), class_conditional=False
):
    """Returns endless batches to `fit` a `RoutingTransformerImageLM` with `steps_per_epoch`.

    Batch b depends only on the images, the seed and b: each pass uses a new random order, computed
    one index at a time. Training can therefore start at any batch without delay, and each of
    several workers can read its part of every batch.

    Args:
        packed: path of a folder of images packed by `pack_examples`.
        batch_size: int, number of images in a batch, over all workers.
        seed: int, seed of the order. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.
        class_conditional: bool, whether the inputs include labels, for a model with classes.
            Defaults to False.

    Returns:
        `tf.data.Dataset` of (inputs, images, weights). The inputs are a dictionary of "images",
        int32 `[batch_size / workers, height, width, channels]`, and, if `class_conditional`,
        "labels", int32 `[batch_size / workers]`. The targets are the same images, since every value
        is predicted. The weights, float32 of the same shape, are 1.

    Raises:
        FileNotFoundError: if the folder holds no packed images, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if packing is incomplete, if a file is damaged, or if `class_conditional` is
            True and the images have no labels.

    Example:

    >>> import tempfile
    >>> from rt_keras.data import pack_examples
    >>> images = tf.data.Dataset.from_tensors({"images": tf.zeros([4, 4, 1], tf.uint8)})
    >>> packed = pack_examples(images, tempfile.mkdtemp())
    >>> inputs, targets, weights = next(iter(training_images(packed, batch_size=2)))
    >>> inputs["images"].shape, targets.shape, weights.shape
    (TensorShape([2, 4, 4, 1]), TensorShape([2, 4, 4, 1]), TensorShape([2, 4, 4, 1]))
    """
    batches = shuffled_batches(packed, batch_size, seed, first_batch, share)
    return prepared(_columns(batches, class_conditional), _example)


def evaluation_images(images, batch_size, class_conditional=False):
    """Returns batches that contain each image once, in order.

    Args:
        images: `tf.data.Dataset` of dictionaries, as from `load_images`.
        batch_size: int, number of images in a batch.
        class_conditional: bool, whether the inputs include labels, for a model with classes.
            Defaults to False.

    Returns:
        `tf.data.Dataset` of (inputs, images, weights). The inputs are a dictionary of "images",
        int32 `[batch_size, height, width, channels]`, and, if `class_conditional`, "labels", int32
        `[batch_size]`. The targets are the same images. The weights, float32 of the same shape, are
        1, or 0 for the images of zeros that pad the last batch.

    Raises:
        ValueError: if `batch_size` is less than 1, or if `class_conditional` is True and the
            images have no labels.

    Example:

    >>> images = tf.data.Dataset.from_tensor_slices({"images": tf.ones([3, 1, 2, 1], tf.uint8)})
    >>> for inputs, targets, weights in evaluation_images(images, batch_size=2):
    ...     print(targets.numpy().reshape(2, 2).tolist(), weights.numpy().reshape(2, 2).tolist())
    [[1, 1], [1, 1]] [[1.0, 1.0], [1.0, 1.0]]
    [[1, 1], [0, 0]] [[1.0, 1.0], [0.0, 0.0]]
    """
    return prepared(filled_batches(_columns(images, class_conditional), batch_size), _example)


def _columns(images, class_conditional):
    """Selects the images, and their labels if `class_conditional`."""
    names = ("images", "labels") if class_conditional else ("images",)
    if class_conditional and "labels" not in images.element_spec:
        raise wrong_value("class_conditional", "False for images without labels", True)
    return images.map(lambda example: {name: example[name] for name in names})


def _example(batch):
    """Returns inputs, targets and weights."""
    inputs = {name: tf.cast(values, tf.int32) for name, values in batch.items()}
    return inputs, inputs["images"], tf.ones_like(inputs["images"])
