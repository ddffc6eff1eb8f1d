"""Training of one model on one task, with its scores, time and memory."""

import math
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from keras_hub.layers import ReversibleEmbedding

from rt_keras.benchmarks import machine
from rt_keras.benchmarks.quality_heads import KINDS, Sizes, reach
from rt_keras.benchmarks.quality_tasks import TASKS
from rt_keras.benchmarks.runs import say
from rt_keras.callbacks.centroid_ema import CentroidEMA
from rt_keras.layers.centroids import centroids_inside
from rt_keras.layers.sinusoidal_positions import SinusoidalPositions
from rt_keras.layers.token_shift import TokenShift
from rt_keras.layers.transformer_block import TransformerBlock

HEADS = 4
# Number of held-out batches in a test.
TEST_BATCHES = 16
WARM_UP = 50


def train(settings, num_tests):
    """Trains one model.

    All kinds get the same batches, steps and model, except for the heads and their convolutions:
    pre-norm blocks of attention and a feed-forward network, token embeddings mixed with those of
    the preceding tokens, positions as the settings say, and Adam with warmup and cosine decay.

    Args:
        settings: dictionary of JSON values: strings `task`, `kind` and `positions`, `seed`, and
            the ints `length`, `steps`, `keys`, `clusters`, `layers`, `width` and `batch`; float
            `learning_rate`; `directory`, a string or None.
        num_tests: int, the number of tests during the training.

    Returns:
        A dictionary of
        - `machine`;
        - `weights`, the number of trainable weights;
        - `steps`, `loss` and `accuracy`, lists: the steps of the tests, and the held-out loss and
          accuracy after them; the loss is in nats per scored prediction;
        - `groups`, for each group of the task, its share of the held-out predictions and its final
          loss;
        - `seconds`, the median time of a step.

    Raises:
        FloatingPointError: if the loss is NaN or infinite at the end.
    """
    keras.utils.set_random_seed(settings["seed"])
    task = TASKS[settings["task"]](settings["length"], settings["directory"])
    model = build(task, settings)
    _compile(model, settings)
    every, watch = settings["steps"] // num_tests, _Watch(settings)
    history = model.fit(
        batches(task, settings),
        steps_per_epoch=every,
        epochs=num_tests,
        validation_data=batches(task, settings, held_out=True).take(TEST_BATCHES).cache(),
        shuffle=False,
        # The last one, so that the times of steps include the others.
        callbacks=[*([CentroidEMA()] if centroids_inside(model) else []), watch],
        verbose=0,
    ).history
    if not math.isfinite(history["val_nats"][-1]):
        raise FloatingPointError(f"the loss of {settings['kind']} is not finite")
    return {
        "machine": machine.describe(),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        "steps": [every * (test + 1) for test in range(num_tests)],
        "loss": history["val_nats"],
        "accuracy": history["val_accuracy"],
        "groups": group_losses(model, task, settings),
        "seconds": statistics.median(watch.seconds),
    }


class _Watch(keras.callbacks.Callback):
    """Prints the tests of a training and keeps the times of its steps."""

    def __init__(self, settings):
        super().__init__()
        self.name, self.seconds = "{kind} on {task}, seed {seed}".format(**settings), []

    def on_train_batch_begin(self, batch, logs=None):
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.started)

    def on_epoch_end(self, epoch, logs=None):
        scores = f"accuracy {logs['val_accuracy']:.3f}, loss {logs['val_nats']:.3f}"
        say(f"{self.name}: step {len(self.seconds):,}, {scores}")


def build(task, settings):
    """Builds the model of a run.

    Args:
        task: a `Task`.
        settings: dictionary of `kind`, `positions`, `keys`, `clusters`, `layers` and `width`.

    Returns:
        A model that returns logits. Its inputs are a dictionary of `tokens` and, unless all
        positions are scored, `places`, the scored positions `[batch, scored]`.
    """
    width = settings["width"]
    inputs = {"tokens": keras.Input([task.length], dtype="int32", name="tokens")}
    sinusoidal = settings["positions"] == "sinusoidal"
    # Scaled so that sines do not drown them, as in `RoutingTransformerBackbone`.
    stddev, scale = (width**-0.5, width**0.5) if sinusoidal else (0.02, 1.0)
    initializer = keras.initializers.RandomNormal(stddev=stddev)
    embedding = ReversibleEmbedding(task.vocabulary_size, width, embeddings_initializer=initializer)
    x = TokenShift(name="embedded")(embedding(inputs["tokens"]) * scale)
    if sinusoidal:
        x = SinusoidalPositions(name="with_positions")(x)
    sizes = Sizes(settings["keys"], settings["clusters"], settings["positions"])
    for index in range(settings["layers"]):
        kind = KINDS[settings["kind"]]
        kind = kind.first if index == 0 and kind.first else kind
        block = TransformerBlock(
            kind.head_groups(HEADS, sizes),
            intermediate_dim=4 * width,
            conv_kernel_size=4 if kind.convolved else None,
        )
        x = block(x, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x)
    if task.scored < task.length:
        # Logits of all positions would take most of the time with a large vocabulary.
        inputs["places"] = keras.Input([task.scored], dtype="int32", name="places")
        x = keras.ops.matmul(keras.ops.one_hot(inputs["places"], task.length), x)
    return keras.Model(inputs, embedding(x, reverse=True))


def batches(task, settings, held_out=False):
    """Returns endless batches of a task as inputs, targets and weights of its model."""

    def at_scored_places(tokens, targets, weights):
        inputs = {"tokens": tokens}
        if task.scored == task.length:
            return inputs, targets, weights
        inputs["places"] = tf.math.top_k(weights, task.scored).indices
        return inputs, *[tf.gather(x, inputs["places"], batch_dims=1) for x in (targets, weights)]

    return task.batches(settings["seed"], settings["batch"], held_out).map(at_scored_places)


def _compile(model, settings):
    steps, rate = max(settings["steps"] - WARM_UP, 1), settings["learning_rate"]
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, alpha=0.05, warmup_target=rate, warmup_steps=WARM_UP
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseCategoricalCrossentropy(name="nats", from_logits=True),
        ],
        jit_compile=True,
    )


def group_losses(model, task, settings):
    """Computes the held-out loss of each group of predictions.

    Args:
        model: a trained model.
        task: its `Task`.
        settings: dictionary of `seed`, `batch` and `keys`.

    Returns:
        A dictionary from the names of the task's groups to dictionaries of `share`, the share of
        predictions, and `loss`, in nats, or None if the group is empty.
    """
    if not task.group_names:
        return {}
    held_out = task.batches(settings["seed"], settings["batch"], held_out=True)
    counts, sums = np.zeros([2, len(task.group_names)])
    for tokens, targets, weights in held_out.take(TEST_BATCHES):
        logits = model({"tokens": tokens}, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits) * weights
        groups = task.groups(tokens.numpy(), targets.numpy(), reach(settings["keys"]))
        for totals, values in ((counts, weights), (sums, losses)):
            totals += np.bincount(groups.ravel(), values.numpy().ravel(), len(totals))
    losses = [float(total / count) if count else None for total, count in zip(sums, counts)]
    shares = (counts / counts.sum()).tolist()
    return {
        name: {"share": share, "loss": loss}
        for name, share, loss in zip(task.group_names, shares, losses)
    }
