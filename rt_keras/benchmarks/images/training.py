"""Training of one image model, with its bits per dimension; and the bits of codecs."""

import io
import math
import statistics

import keras
import numpy as np
import tensorflow as tf

from rt_keras import extras
from rt_keras.analysis import heads as head_analysis
from rt_keras.benchmarks import machine
from rt_keras.benchmarks.images.kinds import CODECS, HEADS, head_keys, parse
from rt_keras.benchmarks.images.pixel_cnn import pixel_cnn
from rt_keras.benchmarks.training_runs import TESTS, training_keys, watch
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.data.images import SETS, SHAPES, evaluation_images
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment, make_optimizer
from rt_keras.training.tasks.task import bits

# Batches of held-out images per test during training, and images whose heads are compared.
TEST_BATCHES, COMPARED = 16, 4


def train(settings, report):
    """Trains one model, or measures a codec.

    All kinds get the same batches, steps, positions and blocks.

    Args:
        settings: dictionary of JSON values; see `rt_keras.benchmarks.images.run_settings`.
        report: function; see `rt_keras.benchmarks.training_runs.train_alone`.

    Returns:
        A dictionary of
        - `settings` and `machine`;
        - `test_bits`: bits per dimension of the test images;
        - for a model, `weights`, their number; `steps` and `bits`, lists: the steps of the tests
          and the bits per dimension of held-out images; `seconds`, the median time of a step; and
          `divergences` between the heads of a layer, see `rt_keras.analysis.heads.measure`.

    Raises:
        FloatingPointError: if the loss is NaN or infinite.
        ValueError: if an option of the kind does not fit the images.
    """
    found = {"settings": settings, "machine": machine.describe()}
    experiment = Experiment(make_config(config_keys(settings)))
    images = experiment.load_split("test").take(settings["test_images"])
    kind, _ = parse(settings["kind"])
    if kind in CODECS:
        return {**found, "test_bits": codec_bits(images, kind)}
    keras.utils.set_random_seed(settings["seed"])
    model = _model(experiment, kind)
    every, seconds = settings["steps"] // TESTS, []
    history = model.fit(
        experiment.training_batches(),
        steps_per_epoch=every,
        epochs=TESTS,
        validation_data=_batches(experiment, experiment.load_split("validation"))
        .take(TEST_BATCHES)
        .cache(),
        shuffle=False,
        callbacks=_callbacks(model, every, seconds, report),
        verbose=0,
    ).history
    tested = model.evaluate(_batches(experiment, images), verbose=0, return_dict=True)
    return {
        **found,
        "test_bits": bits(tested["nats"]),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        "steps": [every * (test + 1) for test in range(TESTS)],
        "bits": [bits(nats) for nats in history["val_nats"]],
        "seconds": statistics.median(seconds),
        "divergences": _divergences(model, experiment, images) if routing_heads(model) else [],
    }


def config_keys(settings):
    """Returns the keys and values of a configuration for a run."""
    height, width, channels = shape_of(settings)
    kind = settings["kind"]
    if parse(kind)[0] in (*CODECS, "pixel_cnn"):
        kind = "local"
    sizes = (HEADS, settings["layers"], settings["keys"], height * width * channels)
    return {
        "model.kind": "image_lm",
        "model.num_layers": settings["layers"],
        "model.hidden_dim": settings["width"],
        "model.intermediate_dim": 4 * settings["width"],
        "model.image.height": height,
        "model.image.width": width,
        "model.image.channels": channels,
        **head_keys(kind, *sizes),
        "data.name": settings["data"],
        "data.directory": settings["directory"],
        "data.batch_size": settings["batch"],
        **training_keys(settings),
    }


def shape_of(settings):
    """Returns the shape of the images, `(height, width, channels)`."""
    name = settings["data"]
    return SHAPES.get(name) or SETS.builder(name, settings["directory"]).image_shape


def _model(experiment, kind):
    """Returns the compiled model of a kind."""
    model = experiment.make_model()
    if kind == "pixel_cnn":
        model = pixel_cnn(experiment.model.image.shape, model.count_params())
    model.compile(
        optimizer=make_optimizer(experiment.config),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(name="nats", from_logits=True)
        ],
        jit_compile=True,
    )
    return model


def _batches(experiment, images):
    return evaluation_images(images, experiment.data.batch_size)


def _callbacks(model, every, seconds, report):
    """Returns the callbacks of a run, which append the time of each step to `seconds`."""

    def note(logs):
        return f"{bits(logs['val_nats']):.3f} bits per dimension"

    watching = watch(every, seconds, report, note)
    return [*([CentroidEMA()] if routing_heads(model) else []), StopAtNaN(), watching]


def _divergences(model, experiment, images):
    """Returns the Jensen-Shannon divergences between the heads of each layer, for a few images."""
    inputs = [inputs for inputs, *_ in _batches(experiment, images.take(COMPARED)).unbatch()]
    batches = [{name: x[None] for name, x in image.items()} for image in inputs]
    return head_analysis.measure(model, batches)["divergences"]


def codec_bits(images, codec):
    """Returns the bits per dimension of images as files.

    Args:
        images: `tf.data.Dataset` of dictionaries with "images", uint8.
        codec: string, one of `CODECS`.

    Returns:
        float, 8 times the bytes of the files over the number of values.

    >>> blank = tf.data.Dataset.from_tensors({"images": tf.zeros([28, 28, 1], tf.uint8)})
    >>> 0 < codec_bits(blank, "png") < 2
    True
    """
    encode = {"png": _png, "webp": _webp}[codec]
    sizes = [(len(encode(x["images"])), x["images"].size) for x in images.as_numpy_iterator()]
    return 8 * sum(size for size, _ in sizes) / sum(values for _, values in sizes)


def _png(image):
    return tf.io.encode_png(image, compression=9).numpy()


def _webp(image):
    with extras.needed("plot", "Writing WebP"):
        from PIL import Image

    file = io.BytesIO()
    grey = np.squeeze(image, -1) if image.shape[-1] == 1 else image
    Image.fromarray(grey).save(file, "WEBP", lossless=True, quality=100, method=6)
    return file.getvalue()
