"""Training with full attention on one task, and measurement of the heads that replace it."""

import itertools

import keras
import numpy as np
import tensorflow as tf

import rt_keras
from rt_keras import progress
from rt_keras.benchmarks.approximate import models
from rt_keras.benchmarks.approximate.tasks import VOCABULARY, batches, unigram_accuracy
from rt_keras.benchmarks.quality.tasks.text import read

# Number and seed of held-out batches, and seed and number of distillation batches.
TEST_BATCHES, TEST_SEED, DISTILL_SEED, DISTILL_BATCHES = 16, 10**6, 10**5, 64


def measure_task(task, kinds, settings):
    """Trains a model on a task, and measures it with each kind of heads.

    Args:
        task: string, a key of `TASKS`.
        kinds: list of strings, keys of `KINDS`.
        settings: dictionary of the options.

    Returns:
        A list of figures; see `rt_keras.benchmarks.approximate.main`.
    """
    keras.utils.set_random_seed(0)
    causal, length = task == "causal", settings["length"]
    text, held_out = (read(settings["directory"], split) for split in ("train", "validation"))

    def draw(seed, of):
        return batches(task, seed, settings["batch"], length, of)

    sizes = (settings[name] for name in ("layers", "width", "heads"))
    # The initial positions of both copies are equal.
    period = length // 2 if task == "copy" else None
    backbone = models.make_backbone(causal, length, *sizes, period)
    head = keras.layers.Dense(2 if task == "span" else VOCABULARY)
    train(task, head, backbone, draw(0, text), settings)
    tests = list(itertools.islice(draw(TEST_SEED, held_out), TEST_BATCHES))
    others = itertools.islice(draw(DISTILL_SEED, text), DISTILL_BATCHES)
    samples = [models.inputs_of(tokens) for tokens, _, _ in others]
    figures = []
    for kind in kinds:
        other = models.adapted(backbone, kind, settings["keys"], length, causal, samples[0])
        figure = {"task": task, "kind": kind, "settings": settings}
        figure |= score(task, head, other, tests)
        if settings["distill_steps"] and kind != "full":
            steps = settings["distill_steps"]
            figure["off"] = rt_keras.distill(other, backbone, samples, steps, seed=0, verbose=1)
            after = score(task, head, other, tests)
            figure |= {f"{name}_distilled": value for name, value in after.items()}
        if task == "masked":
            figure["unigram_accuracy"] = unigram_accuracy(length, held_out.tobytes())
        progress.say(f"{kind} on {task}: accuracy {figure['accuracy']:.3f}")
        figures.append(figure)
        keras.backend.clear_session(free_memory=True)
    return figures


def train(task, head, backbone, data, settings):
    """Trains a backbone and its output layer on a task.

    Args:
        task, head, backbone: see `models.loss_and_hits`.
        data: iterator of batches.
        settings: dictionary of the options.
    """
    title = f"training {task}"
    steps = settings["steps"]
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=settings["learning_rate"], warmup_steps=max(1, steps // 10)
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
    head.build((None, None, settings["width"]))
    weights = backbone.trainable_variables + head.trainable_variables
    optimizer.build(weights)

    @tf.function(jit_compile=True)
    def step(*batch):
        with tf.GradientTape() as tape:
            loss, hits = models.loss_and_hits(task, head, backbone, batch)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss, hits

    batches = progress.track(itertools.islice(data, steps), title, steps, "steps")
    for number, batch in enumerate(batches, 1):
        loss, hits = step(*map(tf.constant, batch))
        if number % max(1, steps // 10) == 0:
            progress.say(f"{title}: step {number}, loss {loss:.3f}, accuracy {hits:.3f}")


def score(task, head, backbone, tests):
    """Computes the loss and accuracy on held-out batches.

    Returns:
        Dictionary of the floats `loss` and `accuracy`.
    """
    run = tf.function(lambda *batch: models.loss_and_hits(task, head, backbone, batch))
    found = np.mean([run(*map(tf.constant, batch)) for batch in tests], axis=0)
    return dict(zip(("loss", "accuracy"), found.tolist()))
