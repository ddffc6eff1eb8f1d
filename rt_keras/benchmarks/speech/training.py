"""Training of one speech recognizer, and the heads that replace full attention in it."""

import math
import statistics

import keras
import tensorflow as tf

from rt_keras.benchmarks import machine
from rt_keras.benchmarks.speech.kinds import HEADS, REPLACEMENTS, model_keys
from rt_keras.benchmarks.training_runs import TESTS, training_keys, watch
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.training.batches import validation_batches
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment, load_model
from rt_keras.training.run import compiled_model

# Without it, small sets of recordings are soon known by heart.
DROPOUT = 0.1
# Batches per test during training.
TESTED = 4


def train(settings, report):
    """Trains one model.

    Args:
        settings: dictionary of JSON values; see `rt_keras.benchmarks.speech.run_settings`.
        report: function; see `rt_keras.benchmarks.training_runs.train_alone`.

    Returns:
        A dictionary of
        - `settings`, `machine` and `weights`, the number of weights;
        - `steps` and `nats`, lists: the steps of the tests and the loss of validation recordings;
        - `character_error_rate` and `word_error_rate` of the test recordings, and their
          `nats_per_text`;
        - `swapped`, for the kind "full": a dictionary from other kinds to the same scores with
          their heads in this model;
        - `seconds`, the median time of a step.

    Raises:
        FloatingPointError: if the loss is NaN or infinite.
    """
    experiment = Experiment(make_config(config_keys(settings)))
    keras.utils.set_random_seed(settings["seed"])
    model = compiled_model(experiment)
    if settings["preset"]:
        copy_weights(load_model(settings["preset"]), model)
    tests, seconds = _fit(model, experiment, settings, report)
    examples = experiment.load_split("test").cache()

    def scored(model):
        return scores(model, examples, experiment, settings["batch"])

    found = {
        "settings": settings,
        "machine": machine.describe(),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        **tests,
        **scored(model),
        "seconds": statistics.median(seconds),
    }
    if settings["kind"] == "full":
        found["swapped"] = {
            kind: scored(swapped(model, kind, settings["keys"], experiment))
            for kind in REPLACEMENTS
        }
    return found


def config_keys(settings):
    """Returns the keys and values of a configuration for a run."""
    return {
        **model_keys(*(settings[x] for x in ("kind", "layers", "width", "keys", "length"))),
        "model.dropout": DROPOUT,
        "tokenizer.name": "sentence_piece",
        "tokenizer.vocabulary": settings["vocabulary"],
        "data.directory": settings["directory"],
        "data.join_clips": True,
        "data.batch_size": settings["batch"],
        **training_keys(settings),
        "trainer.validation_batches": TESTED,
    }


def _fit(model, experiment, settings, report):
    """Trains the model; returns the steps and losses of the tests, and the times of the steps."""

    def note(logs):
        return f"{logs['val_nats_per_text']:.1f} nats per text"

    every, seconds = settings["steps"] // TESTS, []
    validation, _, _ = validation_batches(experiment, model, model.distribute_strategy)
    history = model.fit(
        experiment.training_batches(),
        steps_per_epoch=every,
        epochs=TESTS,
        validation_data=validation,
        shuffle=False,
        callbacks=[
            *([CentroidEMA()] if routing_heads(model) else []),
            StopAtNaN(),
            watch(every, seconds, report, note),
        ],
        verbose=0,
    ).history
    steps = [every * (test + 1) for test in range(TESTS)]
    return {"steps": steps, "nats": history["val_nats_per_text"]}, seconds


def scores(model, examples, experiment, batch_size):
    """Returns the error rates and the loss of a model on recordings.

    Args:
        model: a model.
        examples: `tf.data.Dataset` of recordings.
        experiment: the model's `Experiment`.
        batch_size: int.

    Returns:
        A dictionary of floats.
    """
    task, preprocessor = experiment.task, experiment.preprocessor
    errors = task.text_scores(model, examples, batch_size, preprocessor)
    nats = texts = 0.0
    batches = task.evaluation_batches(model, examples, batch_size, preprocessor)
    for inputs, labels, weights in batches:
        losses = task.loss().call(labels, model.compiled_logits(inputs))
        nats += float(tf.reduce_sum(losses * weights))
        texts += float(tf.reduce_sum(weights))
    return {**errors, "nats_per_text": nats / texts}


def copy_weights(model, other):
    """Copies the weights of a model to one with other heads, which may have further weights.

    Args:
        model: a model.
        other: a model of the same sizes. Weights that `model` lacks, such as centroids, are kept.

    Raises:
        ValueError: if the sizes differ.
    """
    known = {weight.path: weight for weight in model.weights}
    for weight in other.weights:
        if weight.path in known:
            if known[weight.path].shape != weight.shape:
                raise ValueError(
                    f"--preset must hold a model of the same sizes: its {weight.path} has the "
                    f"shape {tuple(known[weight.path].shape)}, not {tuple(weight.shape)}"
                )
            weight.assign(known[weight.path])


def swapped(model, kind, keys, experiment):
    """Returns a model with other heads instead of full attention, and the same weights.

    Args:
        model: a trained model with full attention.
        kind: string, a key of `REPLACEMENTS`.
        keys: int, number of keys that a query sees.
        experiment: its `Experiment`.

    Returns:
        A model.
    """
    groups = REPLACEMENTS[kind](HEADS, keys, experiment.data.sequence_length, causal=False)
    serialized = [keras.saving.serialize_keras_object(group) for group in groups]
    config = model.backbone.get_config()
    config["head_groups"] = [serialized] * model.backbone.num_layers
    other = type(model)(type(model.backbone).from_config(config))
    copy_weights(model, other)
    return other
