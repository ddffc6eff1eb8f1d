"""The task of image models."""

import math

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data.images import SETS
from rt_keras.training.tasks.task import Task, batch_spec, bits

# The number of values that a channel can have.
PIXEL_VALUES = 256


class ImageLMTask(Task):
    """Predicts each value of each channel of an image from the previous values."""

    kind = "image_lm"
    model_class = models.RoutingTransformerImageLM
    data_sets = SETS
    units = (("bits_per_dimension", ".4f"), ("nats_per_token", ".4f"))
    examples = "images"
    generates = "image"

    def token_ids(self, preprocessor):
        return PIXEL_VALUES

    def length(self, experiment):
        return math.prod(experiment.model.image.shape)

    def make_backbone(self, section, options):
        image = section.image
        # Without blocks, one row after the other.
        block_shape = tuple(image.block_shape or [image.width * image.channels])
        shapes = {"image_shape": image.shape, "block_shape": block_shape}
        others = {name: getattr(image, name) for name in ("num_classes", "position_embedding")}
        return super().make_backbone(section, {**options, **shapes, **others})

    def load_split(self, data, split, preprocessor=None):
        return data_lib.load_images(data.name, split, data.data_dir, data.directory)

    def training_batches(self, experiment, **order):
        images = experiment.load_split("train")
        _check_shape(images, experiment.model.image.shape)
        packed = data_lib.pack_examples(images, *self.packed_split(experiment.data))
        conditional = experiment.model.image.num_classes is not None
        return data_lib.training_images(packed, class_conditional=conditional, **order)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        _check_shape(examples, model.backbone.image_shape)
        conditional = model.backbone.num_classes is not None
        return data_lib.evaluation_images(examples, batch_size, conditional)

    def example_spec(self, experiment, batch_size):
        image = experiment.model.image
        inputs = {"images": tf.TensorSpec([batch_size, *image.shape], tf.int32)}
        if image.num_classes is not None:
            inputs["labels"] = tf.TensorSpec([batch_size], tf.int32)
        return batch_spec(inputs, batch_size, *image.shape)

    def scores(self, sums, counts):
        nats = sums["nats"] / sums["labels"]
        return {"bits_per_dimension": bits(nats), "nats_per_token": nats}


def _check_shape(images, shape):
    """Raises a ValueError if images do not have the shape of the model."""
    found = tuple(images.element_spec["images"].shape)
    if found != tuple(shape):
        sizes = (" x ".join(map(str, sides)) for sides in (found, shape))
        raise ValueError(
            "The images are {} and those of the model {}; set model.image.height, width and "
            "channels to the size of the images".format(*sizes)
        )
