import numpy as np

from rt_keras.tpu import step as tpu_step
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment
from tests.tpu.checks import TINY


def tiny_experiment(**changes):
    return Experiment(make_config({**TINY, **changes}))


def test_sizes_are_those_of_the_variables():
    experiment = tiny_experiment()
    _, specs, model = tpu_step.training_step(experiment, batch_size=2)
    figures = tpu_step.sizes(model, specs)
    assert figures["tokens"] == 32
    assert figures["parameters"] == sum(np.size(x) for x in model.trainable_variables)
    assert figures["gradient_bytes"] == 4 * figures["parameters"]
    # Weights and both moments of Adam, and the state of the routing heads.
    assert figures["state_bytes"] > 3 * figures["gradient_bytes"]
