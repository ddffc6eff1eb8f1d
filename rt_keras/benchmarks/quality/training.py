"""Training of one model on one task, with its scores, time and memory."""

import math
import statistics

import keras
import numpy as np
import tensorflow as tf
from keras_hub.layers import ReversibleEmbedding

from rt_keras.benchmarks import machine
from rt_keras.benchmarks.memory import resident_peak
from rt_keras.benchmarks.quality.kinds import FROZEN, Sizes, heads_of_block, reach
from rt_keras.benchmarks.quality.tasks import make_task
from rt_keras.benchmarks.training_runs import TESTS, watch
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.layers import SinusoidalPositions, TokenShift, TransformerBlock
from rt_keras.layers.attention_calls import attention_calls

HEADS = 4
# Number of held-out batches per test.
TEST_BATCHES = 16
WARM_UP = 50
# Longest sequence whose keys are counted, since counting takes O(n²) time.
LONGEST_COUNTED = 8192


def train(settings, report):
    """Trains one model.

    All kinds get the same batches, steps and model, except for the heads and their convolutions:
    pre-norm blocks of attention and a feed-forward network, token embeddings mixed with those of
    the preceding tokens, positions as the settings say, and Adam with warmup and cosine decay.

    Args:
        settings: dictionary of JSON values: strings `task`, `kind` and `positions`, `seed`, and
            the ints `length`, `steps`, `keys`, `clusters`, `layers`, `width` and `batch`; float
            `learning_rate`; `directory`, a string or None; `test_lengths`, a list of ints.
        report: function, called as `report("step", step)` after each step and as
            `report("test", {"step": step, "note": text})` after each test.

    Returns:
        A dictionary of
        - `settings` and `machine`;
        - `weights`, the number of trainable weights;
        - `keys_seen`, the mean number of keys that a query of a head attends to in a held-out
          sequence, or None if it is longer than `LONGEST_COUNTED` or heads have no weights;
        - `steps`, `loss` and `accuracy`, lists: the steps of the tests, and the held-out loss and
          accuracy after them; the loss is in nats per scored prediction;
        - `groups`, for each group of the task, its share of the held-out predictions and its final
          loss;
        - `at_lengths`, a list of dictionaries with a `length` and the final `loss` and `accuracy`
          at it;
        - `cluster_use`, the logs of `CentroidEMA` at these steps;
        - `seconds`, the median time of a step;
        - `peak_bytes`, the peak memory of the accelerator or, without one, of the process, less
          that after the imports.

    Raises:
        FloatingPointError: if the loss is NaN or infinite.
    """
    before = resident_peak()
    keras.utils.set_random_seed(settings["seed"])
    task = make_task(settings["task"], settings["length"], settings["directory"])
    model = build(task, settings)
    _compile(model, settings)
    held_out = batches(task, settings, held_out=True).take(TEST_BATCHES).cache()
    seconds, every = [], settings["steps"] // TESTS
    history = model.fit(
        batches(task, settings),
        steps_per_epoch=every,
        epochs=TESTS,
        validation_data=held_out,
        shuffle=False,
        callbacks=_callbacks(model, settings, every, seconds, report),
        verbose=0,
    ).history
    peak_bytes = _peak_bytes(before)
    return {
        "settings": settings,
        "machine": machine.describe(),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        "keys_seen": keys_seen(model, task, settings["seed"]),
        "steps": [every * (test + 1) for test in range(TESTS)],
        "loss": history["val_nats"],
        "accuracy": history["val_accuracy"],
        "groups": group_losses(model, task, settings),
        "at_lengths": [at_length(model, length, settings) for length in settings["test_lengths"]],
        "cluster_use": {name: values for name, values in history.items() if "routing" in name},
        "seconds": statistics.median(seconds),
        "peak_bytes": peak_bytes,
    }


def build(task, settings):
    """Builds the model of a run.

    Args:
        task: a `Task`.
        settings: dictionary of `kind`, `positions`, `keys`, `clusters`, `layers` and `width`.

    Returns:
        A model that returns logits. Its inputs are a dictionary of `tokens` and, unless all
        positions or the whole sequence are scored, `places`, the scored positions
        `[batch, scored]`.
    """
    width = settings["width"]
    inputs = {"tokens": keras.Input([task.length], dtype="int32", name="tokens")}
    sinusoidal = settings["positions"] == "sinusoidal"
    # Scaled so that sines do not drown them, as in `RoutingTransformerBackbone`.
    stddev, scale = (width**-0.5, width**0.5) if sinusoidal else (0.02, 1.0)
    embedding = ReversibleEmbedding(
        task.vocabulary_size,
        width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=stddev),
    )
    x = TokenShift(name="embedded")(embedding(inputs["tokens"]) * scale)
    if sinusoidal:
        x = SinusoidalPositions(name="with_positions")(x)
    real = real_tokens(task, inputs["tokens"])
    sizes = Sizes(settings["keys"], settings["clusters"], settings["positions"])
    for index in range(settings["layers"]):
        heads, options = heads_of_block(settings["kind"], index)
        block = TransformerBlock(heads(HEADS, sizes), intermediate_dim=4 * width, **options)
        x = block(x, padding_mask=real, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x)
    if task.classes:
        pooled = keras.layers.GlobalAveragePooling1D()(x, mask=real)
        return keras.Model(inputs, keras.layers.Dense(task.classes)(pooled))
    if task.scored < task.length:
        # Logits of all positions would take most of the time with a large vocabulary.
        inputs["places"] = keras.Input([task.scored], dtype="int32", name="places")
        x = keras.ops.matmul(keras.ops.one_hot(inputs["places"], task.length), x)
    return keras.Model(inputs, embedding(x, reverse=True))


def real_tokens(task, tokens):
    """Returns a mask of the tokens that are not padding, or None if the task has no padding."""
    return None if task.padding is None else keras.ops.not_equal(tokens, task.padding)


def batches(task, settings, held_out=False):
    """Returns the batches of a task as inputs, targets and weights of its model.

    Args:
        task: a `Task`.
        settings: dictionary of `seed` and `batch`.
        held_out: bool, whether to draw validation batches. Defaults to False.

    Returns:
        Endless `tf.data.Dataset` of (inputs of the model, targets, weights).
    """

    def at_scored_places(tokens, targets, weights):
        inputs = {"tokens": tokens}
        if task.classes or task.scored == task.length:
            return inputs, targets, weights
        inputs["places"] = tf.math.top_k(weights, task.scored).indices
        scored = [tf.gather(x, inputs["places"], batch_dims=1) for x in (targets, weights)]
        return inputs, *scored

    return task.batches(settings["seed"], settings["batch"], held_out).map(at_scored_places)


def _compile(model, settings):
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(settings["steps"] - WARM_UP, 1),
        alpha=0.05,
        warmup_target=settings["learning_rate"],
        warmup_steps=WARM_UP,
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


def _callbacks(model, settings, every, seconds, report):
    """Returns the callbacks of a run, which append the time of each step to `seconds`."""

    def note(logs):
        return f"accuracy {logs['val_accuracy']:.3f}, loss {logs['val_nats']:.3f}"

    moving = routing_heads(model) and settings["kind"] not in FROZEN
    watching = watch(every, seconds, report, note)
    return [*([CentroidEMA()] if moving else []), StopAtNaN(), watching]


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
    return {
        name: {
            "share": float(count / counts.sum()),
            "loss": float(total / count) if count else None,
        }
        for name, count, total in zip(task.group_names, counts, sums)
    }


def at_length(model, length, settings):
    """Scores a trained model on sequences of another length, with as many keys and clusters.

    Args:
        model: a trained model.
        length: int.
        settings: dictionary; see `train`.

    Returns:
        A dictionary of `length`, `loss` and `accuracy`, on as many held-out sequences as in the
        tests during training, one at a time.
    """
    task = make_task(settings["task"], length, settings["directory"])
    other = build(task, settings)
    other.set_weights(model.get_weights())
    _compile(other, settings)
    held_out = batches(task, {**settings, "batch": 1}, held_out=True)
    scores = other.evaluate(
        held_out, steps=TEST_BATCHES * settings["batch"], verbose=0, return_dict=True
    )
    return {"length": length, "loss": scores["nats"], "accuracy": scores["accuracy"]}


def keys_seen(model, task, seed):
    """Returns the mean number of keys that a query attends to, over the heads of all blocks.

    Args:
        model: model from `build`.
        task: its `Task`.
        seed: int.

    Returns:
        float; None if sequences are longer than `LONGEST_COUNTED`, or if heads have no attention
        weights.
    """
    if task.length > LONGEST_COUNTED:
        return None
    inputs, *_ = next(iter(batches(task, {"seed": seed, "batch": 1}, held_out=True)))
    real = real_tokens(task, inputs["tokens"])
    queries = slice(None) if real is None else np.asarray(real[0])
    calls = attention_calls(model, inputs)
    if not all(group.returns_attention_scores for call in calls for group, *_ in call.groups):
        return None
    # Weights come in parts. All at once, they would take more memory than training.
    counts = [sum(np.sum(part.numpy() > 0, axis=-1) for part in call.weights()) for call in calls]
    return float(np.mean([count[0, :, queries] for count in counts]))


def _peak_bytes(before):
    """Returns the peak memory of the accelerator, or that of this process less `before`."""
    if tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return resident_peak() - before
