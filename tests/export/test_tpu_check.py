"""The training step that `export/tpu_check.py` compiles; `.ci/weekly` compiles one for a TPU."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment
from tests.training.tasks.checks import TINY_MODEL

SCRIPT = Path(__file__).parents[2] / "export" / "tpu_check.py"
TINY = {**TINY_MODEL, "model.vocabulary_size": 32, "data.sequence_length": 16}


def test_the_step_has_static_shapes_and_traces():
    spec = importlib.util.spec_from_file_location("tpu_check", SCRIPT)
    tpu_check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tpu_check)
    step, specs, model = tpu_check.training_step(Experiment(make_config(TINY)), batch_size=2)
    assert all(x.shape.is_fully_defined() for x in specs) and specs[-1].shape == (2, 16)
    logs = step.get_concrete_function(*specs).structured_outputs
    assert {"loss", "nats_per_token"} <= {*logs} and model.optimizer.built
    assert all(isinstance(x, tf.Tensor) for x in logs.values())


@pytest.mark.weekly
def test_compiled_for_a_tpu():
    pytest.importorskip("libtpu")
    sets = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, SCRIPT, "--config", "quickstart", *sets]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "held (GiB)" in result.stdout
