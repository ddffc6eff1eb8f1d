"""Several processes train one model, like several machines."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.cli.launch import free_addresses
from rt_keras.training.cluster import tf_config
from tests.cli.checks import overrides
from tests.training.test_run import log_without_speed

ROOT = Path(__file__).parents[2]
# All random features are on: dropout, restarts of clusters, two probes.
RANDOM = {"model.dropout": 0.1, "model.routing.num_probes": 2, "centroids.restart_after": 1}
# Prints the loss of each step and, at the end, the norm of the last gradients, a sum of all
# variables of this worker, and the scores of the trained model.
TRAIN = """
import json
import sys
import keras
from rt_keras.training import run
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.experiment import Experiment
from tests.conftest import trace_fast
from tests.training.test_workers import local_values

trace_fast()
settings, output = json.loads(sys.argv[1]), sys.argv[2]
models, losses, make_model, make_callbacks = [], [], run.compiled_model, run._callbacks

class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]))
        # Otherwise the next one would be a mean over the epoch.
        self.model.reset_metrics()

def compiled_model(*args):
    models.append(make_model(*args))
    return models[0]

run.compiled_model = compiled_model
run._callbacks = lambda *args: [*make_callbacks(*args), Note()]
run.train(make_config(settings), output, verbose=0)
found = {"losses": losses, "norm": models[0].gradient_norm, **local_values(models[0])}
experiment = Experiment(make_config(settings))
models[0].preprocessor = experiment.preprocessor
found["scores"] = evaluate(models[0], experiment.load_split("test"))
print(json.dumps(found))
"""


def local_values(model):
    """The weights of this process, with the centroids, as lists; a sum of all variables."""
    values = [np.asarray(x) for x in model.variables]
    whole = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
    # Without the random members from which clusters may restart.
    weights = [np.asarray(x).tolist() for x in model.weights if x.name != "member_samples"]
    return {"weights": weights, "sum": whole}


def train(settings, output, workers):
    """The output of each worker."""
    command = [sys.executable, "-c", TRAIN, json.dumps(settings), str(output)]
    with free_addresses(workers) as addresses:
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "TF_CONFIG": tf_config(addresses, number)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(workers)
        ]
        outputs = [process.communicate(timeout=300) for process in processes]
    for process, (_, error) in zip(processes, outputs):
        assert process.returncode == 0, error[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize(
    "more, tolerance",
    [
        # 8 bits of mantissa.
        pytest.param({"trainer.mixed_bfloat16": True}, 1e-2, marks=pytest.mark.weekly),
        pytest.param({}, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_two_workers_train_and_score_as_one_does(tiny_settings, tmp_path, more, tolerance):
    settings = {**tiny_settings, "trainer.steps": 6, "trainer.validation_every": 3, **more}
    settings["optimizer.learning_rate"] = 1e-3
    [one] = train(settings, tmp_path / "one", 1)
    settings["trainer.strategy"] = "multi_worker"
    first, second = train(settings, tmp_path / "two", 2)
    assert first["sum"] == second["sum"] and first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], one["losses"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(first["norm"], one["norm"], rtol=10 * tolerance)
    for shared, alone in zip(first["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(shared, alone, rtol=100 * tolerance, atol=10 * tolerance)
    log, alone = ((tmp_path / name / "log.csv").read_text() for name in ("two", "one"))
    assert len(log.splitlines()) == len(alone.splitlines()) == 3
    assert first["scores"] == second["scores"]
    assert first["scores"] == pytest.approx(one["scores"], rel=10 * tolerance)


def assert_equal_runs(one, other):
    """Asserts that the final state has the same bits, except for metrics and their logs.

    A checkpoint has the sums of metrics over all workers. From one in the middle of an epoch each
    worker continues with an equal share of them, and rounds in its own way.
    """
    states = [Checkpoints(folder / "checkpoints") for folder in (one, other)]
    (arrays, _), (others, _) = (x.read(x.steps()[-1]) for x in states)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        if not name.startswith("metrics"):
            np.testing.assert_array_equal(array, others[name], err_msg=name)
    for row, expected in zip(log_without_speed(one), log_without_speed(other), strict=True):
        assert row.keys() == expected.keys()
        for name, value in row.items():
            np.testing.assert_allclose(float(value), float(expected[name]), rtol=1e-6, err_msg=name)


def launch(settings, folder):
    command = [sys.executable, "-m", "rt_keras", "launch", "--workers", "2", "--"]
    train = ["train", "--config", "books", "--resume=auto", *map(str, overrides(settings))]
    return subprocess.Popen(
        [*command, *train, "--output", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers_of(process):
    """The process ids of the workers of a launcher."""
    found = subprocess.run(
        ["pgrep", "-P", str(process.pid), "-f", "rt_keras train"], capture_output=True, text=True
    )
    return [int(line) for line in found.stdout.split()]


def wait_for_step(process, folder, step):
    while (Checkpoints(folder / "checkpoints").newest()[0] or 0) < step:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


@pytest.mark.weekly
def test_a_signal_to_one_worker_stops_all_after_the_same_step_and_changes_no_bit(
    tiny_settings, tmp_path
):
    settings = {**tiny_settings, **RANDOM, "trainer.steps": 100, "trainer.validation_every": 50}
    settings["trainer.checkpoint_every"] = 5
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    with launch(settings, whole) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    with launch(settings, stopped) as process:
        wait_for_step(process, stopped, 5)
        # Only one worker gets it, as on a cluster.
        os.kill(workers_of(process)[-1], signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    step = Checkpoints(stopped / "checkpoints").newest()[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert f"stopped by SIGTERM after step {step:,}; --resume" in output
    with launch(settings, stopped) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert_equal_runs(stopped, whole)
