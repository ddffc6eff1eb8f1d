"""The function of an exported image model, from image files to image files."""

import tensorflow as tf

from rt_keras.models.generation import int32_seed
from rt_keras.serving import checks
from rt_keras.serving.request_sampler import pick_from_logits
from rt_keras.serving.signatures import SEED, TEMPERATURE

# The channels that a PNG file can have here: gray, or red, green and blue.
CHANNELS = (1, 3)
PIXEL_VALUES = 256


def completing_function(model):
    """Returns the signature `complete` of an image model.

    Each row equals the output of `model.generate` for its image alone, independent of the rest of
    the batch.

    Args:
        model: a `RoutingTransformerImageLM` with 1 or 3 channels of 256 values.

    Returns:
        A `tf.function` that takes `image_bytes`, string `[batch]`, each an image file (PNG, JPEG or
        BMP) of the model's width and at least its known rows, and parameters, each a scalar or one
        value per image `[batch]`: `known_rows`, int32, the number of rows to keep, from the top,
        defaults to half of the height; `temperature`, float32, defaults to 1, and 0 selects the
        most likely value; `seed`, int64, defaults to 0. A model with classes also takes `labels`,
        int32. It returns a dictionary of strings `[batch]`: `image_bytes`, PNG files. (TensorFlow
        Serving encodes outputs with this ending in Base64 in JSON.)

    Raises:
        ValueError: if the model's images cannot be PNG files.

    >>> from rt_keras import layers, models
    >>> backbone = models.RoutingTransformerImageBackbone(
    ...     vocabulary_size=256, image_shape=(4, 4, 1), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)], block_shape=(4,))
    >>> complete = completing_function(models.RoutingTransformerImageLM(backbone))
    >>> files = tf.io.encode_png(tf.zeros([2, 2, 4, 1], tf.uint8))
    >>> tf.io.decode_png(complete(files)["image_bytes"][0]).shape
    TensorShape([4, 4, 1])
    """
    backbone = model.backbone
    height, _, channels = backbone.image_shape
    if channels not in CHANNELS or backbone.vocabulary_size > PIXEL_VALUES:
        raise ValueError(
            f"model must have 1 or 3 channels of at most {PIXEL_VALUES} values, as images in files "
            f"do. Received: {channels} channels of {backbone.vocabulary_size} values"
        )
    half = tf.constant(height // 2)

    def complete(image_bytes, labels, known_rows=half, temperature=TEMPERATURE, seed=SEED):
        image_bytes = checks.checked("image_bytes", image_bytes, 1)
        batch = tf.shape(image_bytes)[0]
        known_rows = checks.one_a_row("known_rows", known_rows, batch, checks.from_0_to(height))
        allowed = checks.zero_or_temperature
        temperature = checks.one_a_row("temperature", temperature, batch, allowed)
        seed = checks.one_a_row("seed", seed, batch)
        classes = {}
        if labels is not None:
            known = checks.from_0_to(backbone.num_classes - 1)
            classes["labels"] = checks.one_a_row("labels", labels, batch, known)

        def completed():
            features = {"images": _decoded(image_bytes, known_rows, backbone), **classes}
            images = _completed(model, features, known_rows, temperature, seed)
            images = tf.cast(images, tf.uint8)
            return tf.map_fn(tf.io.encode_png, images, fn_output_signature=tf.string)

        return {"image_bytes": tf.cond(batch > 0, completed, lambda: image_bytes)}

    def complete_without_class(image_bytes, known_rows=half, temperature=TEMPERATURE, seed=SEED):
        return complete(image_bytes, None, known_rows, temperature, seed)

    files = tf.TensorSpec([None], tf.string, name="image_bytes")
    labels = tf.TensorSpec(None, tf.int32, name="labels")
    specs = [
        tf.TensorSpec(None, tf.int32, name="known_rows"),
        tf.TensorSpec(None, tf.float32, name="temperature"),
        tf.TensorSpec(None, tf.int64, name="seed"),
    ]
    if backbone.num_classes is None:
        return tf.function(complete_without_class, [files, *specs], autograph=False)
    return tf.function(complete, [files, labels, *specs], autograph=False)


def _decoded(files, known_rows, backbone):
    """Reads files as images `[batch, height, width, channels]`, with zeros below each."""
    height, width, channels = backbone.image_shape

    def decoded(row):
        file, rows = row
        # The error shows this operation's name.
        name = "image_bytes_must_be_png_jpeg_or_bmp"
        image = tf.io.decode_image(file, channels, expand_animations=False, name=name)
        size = tf.shape(image)[:2]
        fits = (size[1] == width) & (size[0] <= height) & (size[0] >= rows)
        message = (
            f"image_bytes: images must be {width} wide and from known_rows to {height} high; "
            "the height and width are"
        )
        with tf.control_dependencies([tf.debugging.Assert(fits, [message, size])]):
            image = tf.pad(image, [[0, height - size[0]], [0, 0], [0, 0]])
        return tf.ensure_shape(image, backbone.image_shape)

    images = tf.map_fn(decoded, (files, known_rows), fn_output_signature=tf.uint8)
    images = tf.cast(images, tf.int32)
    known = checks.from_0_to(backbone.vocabulary_size - 1)
    return checks.checked("image_bytes", images, 4, [known])


def _completed(model, features, known_rows, temperature, seed):
    """Generates what is below the known rows, each row of the batch with its own parameters."""
    backbone = model.backbone
    known = tf.range(backbone.image_shape[0]) < known_rows[:, None]
    known = tf.broadcast_to(known[:, :, None, None], tf.shape(features["images"]))
    known = backbone.embedding.to_sequence(known)
    # The first value that any of the images lacks.
    everywhere = tf.cast(tf.reduce_all(known, axis=0), tf.int32)
    first = tf.reduce_sum(tf.math.cumprod(everywhere))
    seed = int32_seed(seed)

    def choose(logits, place):
        def drawn(row):
            logits, temperature, seed = row
            scaled = tf.math.divide_no_nan(logits, temperature)
            sampled = pick_from_logits(scaled, tf.stack([seed, place]), model.jit_generate)
            return tf.where(temperature > 0, sampled, tf.argmax(logits, output_type=tf.int32))

        return tf.map_fn(drawn, (logits, temperature, seed), fn_output_signature=tf.int32)

    length = known.shape[1] if backbone.cached_decoding else None
    return model.generate_step(features, known, first, choose, length)
