"""Images: the sets that models of images are compared on, and batches of them."""

import tensorflow as tf

from rt_keras.data.batches import filled_batches, shuffled_batches

# By our name, that of TensorFlow Datasets and the shape of an image.
SETS = {
    "cifar10": ("cifar10", (32, 32, 3)),
    "downsampled_imagenet": ("downsampled_imagenet/64x64", (64, 64, 3)),
    "mnist": ("mnist", (28, 28, 1)),
}
NAMES = tuple(SETS)
# Of sets without a validation split of their own: parts of "train".
HELD_OUT = {"train": "[:90%]", "validation": "[90%:]"}


def load_images(name, split, data_dir=None):
    """The images of one split of a set of TensorFlow Datasets, which downloads it where needed.

    Args:
        name: "cifar10" (32x32, 60,000 images of 10 classes), "mnist" (28x28, 70,000 digits) or
            "downsampled_imagenet" (ImageNet at 64x64, 1.33 million images without classes; where
            its download is no longer offered, `data_dir` has to hold a prepared copy).
        split: "train", "validation" or "test". CIFAR-10 and MNIST have no validation set: it is the
            last tenth of the training set as TFDS has it, 5,000 and 6,000 images, which "train"
            then lacks. ImageNet's test set is not public: there is no "test", and what papers
            report is measured on "validation".
        data_dir: where TensorFlow Datasets keeps what it prepared; by default its own folder.

    Returns:
        `tf.data.Dataset` of dictionaries, in an order that does not change: "images", uint8
        `[height, width, channels]`, and where the set has classes "labels", int32 scalars.

    Raises:
        ValueError: if the name or the split does not exist.
        OSError: if the set could not be downloaded and prepared.

    Source of CIFAR-10: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; of
    MNIST: LeCun et al. 1998; of ImageNet at 64x64: van den Oord et al. 2016, Pixel Recurrent Neural
    Networks, section 5.
    """
    from rt_keras.data import tfds_sets

    if name not in SETS:
        raise ValueError(f"name={name!r} is not a set of images: there are {', '.join(SETS)}")
    full_name, shape = SETS[name]
    builder = tfds_sets.download(full_name, data_dir)
    if "validation" not in builder.info.splits and split in HELD_OUT:
        examples = tfds_sets.read(builder, "train", HELD_OUT[split])
    else:
        examples = tfds_sets.read(builder, split)

    def rename(example):
        images = {"images": tf.ensure_shape(example["image"], shape)}
        if "label" in example:
            images["labels"] = tf.cast(example["label"], tf.int32)
        return images

    return examples.map(rename, num_parallel_calls=tf.data.AUTOTUNE)


def training_images(images, batch_size, seed=0, shuffle_buffer=4096, class_conditional=False):
    """Batches without end for the `fit` of a `RoutingTransformerImageLM`, with `steps_per_epoch`.

    Each pass over the images has an order that depends on the seed and the number of the pass
    alone, so the batches are the same whenever the dataset is read from its beginning.

    Args:
        images: `tf.data.Dataset` of dictionaries, as from `load_images`.
        batch_size: number of images in a batch.
        seed: int, for the order.
        shuffle_buffer: number of images among which the next one is drawn; as many are held in
            memory. 1 keeps the order.
        class_conditional: whether the inputs have the labels too, for a model with classes.

    Returns:
        `tf.data.Dataset` of (inputs, images, weights): inputs a dictionary of "images", int32
        `[batch_size, height, width, channels]`, and "labels", int32 `[batch_size]`, if
        `class_conditional`; the same images, of which every value is to be predicted; and
        weights of 1, float32 of the same shape.

    Raises:
        ValueError: if a number is less than 1, if there is no image, or if `class_conditional`
            and the images have no labels.

    Example:

    >>> images = tf.data.Dataset.from_tensors({"images": tf.zeros([4, 4, 1], tf.uint8)})
    >>> inputs, targets, weights = next(iter(training_images(images, batch_size=2)))
    >>> inputs["images"].shape, targets.shape, weights.shape
    (TensorShape([2, 4, 4, 1]), TensorShape([2, 4, 4, 1]), TensorShape([2, 4, 4, 1]))
    """
    images = _columns(images, class_conditional)
    batches = shuffled_batches(images, batch_size, seed, shuffle_buffer)
    real = tf.ones([batch_size], tf.bool)
    return batches.map(lambda batch: _example(batch, real)).prefetch(tf.data.AUTOTUNE)


def evaluation_images(images, batch_size, class_conditional=False):
    """Batches in which each image stands once, in order.

    Args:
        images: `tf.data.Dataset` of dictionaries, as from `load_images`.
        batch_size: number of images in a batch.
        class_conditional: whether the inputs have the labels too, for a model with classes.

    Returns:
        `tf.data.Dataset` as of `training_images`. What fills up the last batch are images of
        zeros, with weights of 0, so the weights sum to the number of values of all images.

    Raises:
        ValueError: if `batch_size` is less than 1, or if `class_conditional` and the images have
            no labels.

    Example:

    >>> images = tf.data.Dataset.from_tensor_slices({"images": tf.ones([3, 1, 2, 1], tf.uint8)})
    >>> for inputs, targets, weights in evaluation_images(images, batch_size=2):
    ...     print(targets.numpy().reshape(2, 2).tolist(), weights.numpy().reshape(2, 2).tolist())
    [[1, 1], [1, 1]] [[1.0, 1.0], [1.0, 1.0]]
    [[1, 1], [0, 0]] [[1.0, 1.0], [0.0, 0.0]]
    """
    batches = filled_batches(_columns(images, class_conditional), batch_size)
    return batches.map(_example).prefetch(tf.data.AUTOTUNE)


def _columns(images, class_conditional):
    """Images with their labels or, where those are not asked for, without."""
    names = ("images", "labels") if class_conditional else ("images",)
    if class_conditional and "labels" not in images.element_spec:
        raise ValueError("class_conditional=True: these images have no labels; it must be False")
    return images.map(lambda example: {name: example[name] for name in names})


def _example(batch, real):
    """Inputs, targets and weights; images are widened here, to be shuffled as bytes."""
    inputs = {name: tf.cast(values, tf.int32) for name, values in batch.items()}
    weights = tf.cast(real, tf.float32)[:, None, None, None]
    return inputs, inputs["images"], tf.ones_like(inputs["images"], tf.float32) * weights
