"""Presets, checkpoints and states of earlier versions still load and give the same outputs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.models import RoutingTransformerCausalLM
from tests.layers.checks import close
from tests.models import saved_models

SAVED = Path(__file__).parents[1] / "golden" / "saved"

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.fixture(scope="module")
def stateful():
    """The arrays of the file: states, outputs and results of training, by step."""
    found = {}
    for name, x in np.load(SAVED / f"{saved_models.STATEFUL}.npz").items():
        step, _, rest = name.partition("/")
        found.setdefault(step, {})[rest] = x
    return found


def all_close(found, expected):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        close(found[name], x, 1e-5)


@pytest.mark.parametrize("name", [saved_models.PRESET, saved_models.UNION, saved_models.CONVOLVED])
def test_a_preset_gives_the_same_outputs(name):
    folder = SAVED / name
    model = RoutingTransformerCausalLM.from_preset(str(folder))
    assert model.preprocessor.sequence_length == 24
    close(saved_models.logits(model), np.load(folder / "logits.npy"), 1e-5)


def test_a_state_continues_with_the_same_outputs(stateful):
    model = saved_models.stateful_model()
    arrays, _ = Checkpoints(SAVED / saved_models.STATEFUL).read(saved_models.STEPS)
    for number, variable in enumerate(model.variables):
        variable.assign(arrays[f"model_{number}"])
    # Files store the tensors of a state by number.
    numbered = tf.nest.flatten(saved_models.nested(stateful["state"]))
    state = tf.nest.pack_sequence_as(model.new_state(2), numbered)
    outputs, state = model.call_with_state(saved_models.chunk(3)[0], state)
    close(outputs, stateful["outputs"][""], 1e-5)
    after = tf.nest.flatten(saved_models.nested(stateful["after"]))
    for x, expected in zip(tf.nest.flatten(state), after, strict=True):
        close(x, expected, 1e-5)


@pytest.mark.end_to_end
def test_training_resumes_with_the_same_results(stateful, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(SAVED / saved_models.STATEFUL, folder)
    found = saved_models.train(saved_models.stateful_model(), folder, epoch=1)
    all_close(found, stateful["next"])
