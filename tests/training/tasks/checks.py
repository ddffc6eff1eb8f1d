"""Helpers of the tests of tasks."""

import keras
import numpy as np
import tensorflow as tf

from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment

TINY_MODEL = {
    "model.hidden_dim": 16,
    "model.num_layers": 1,
    "model.intermediate_dim": 16,
    "model.heads": [
        {"class": "RoutingHeads", "num_heads": 1, "num_clusters": 2, "window_size": 8},
        {"class": "LocalHeads", "num_heads": 1, "block_size": 8},
    ],
}
TINY_RUN = {
    "data.batch_size": 2,
    "optimizer.learning_rate": 1e-2,
    "schedule.name": "constant",
    "schedule.warmup_steps": 0,
    "trainer.steps": 6,
    "trainer.validation_every": 3,
    "trainer.validation_batches": 2,
    "trainer.jit_compile": False,
}
TINY = TINY_MODEL | TINY_RUN


def new_model(settings):
    """Returns an experiment, and its model with its preprocessor."""
    made = Experiment(make_config(settings))
    keras.utils.set_random_seed(0)
    model = made.make_model()
    model.preprocessor = made.preprocessor
    model.compile(jit_compile=False)
    return made, model


def assert_batches_are_as_specified(config):
    """Checks `example_spec` against `training_batches`."""
    experiment = Experiment(config)
    batch = next(iter(experiment.training_batches()))
    found = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)
    assert found == experiment.task.example_spec(experiment, config.data.batch_size)


def nats_of(model, tokens):
    """-ln p of each token but the first, given the previous tokens, in one pass."""
    ids = np.asarray(tokens)[None]
    logits = model({"token_ids": ids[:, :-1], "padding_mask": np.ones_like(ids[:, :-1])})
    return tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits).numpy()[0]
