"""Several processes train one model, like several machines."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.cli.launch import free_addresses
from rt_keras.data import load_question_answers
from rt_keras.training.cluster import tf_config
from tests.cli.checks import overrides
from tests.training.tasks.checks import TINY
from tests.training.tasks.test_retriever import write_questions
from tests.training.test_run import log_without_speed

ROOT = Path(__file__).parents[2]
# All random features are on: dropout, restarts of clusters, two probes.
RANDOM = {
    "model.dropout": 0.1,
    "model.routing.num_probes": 2,
    "centroids.restart_after": 1,
}
# Prints the loss of each step and, at the end, the norm of the last gradients and a sum of all
# variables of this worker.
TRAIN = """
import json
import sys
import keras
from rt_keras.training import run
from rt_keras.training.config import make_config
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
print(json.dumps({"losses": losses, "norm": models[0].gradient_norm, **local_values(models[0])}))
"""


def local_values(model):
    """The weights of this process, with the centroids, as lists; a sum of all variables."""
    values = [np.asarray(variable) for variable in model.variables]
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


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "more, tolerance",
    [
        ({"trainer.steps_per_execution": 3}, 1e-5),
        # 8 bits of mantissa.
        ({"trainer.mixed_bfloat16": True}, 1e-2),
    ],
)
def test_two_workers_train_as_one_does(tiny_settings, tmp_path, more, tolerance):
    settings = {**tiny_settings, "trainer.steps": 6, "trainer.validation_every": 3, **more}
    assert_two_workers_train_as_one_does(settings, tmp_path, tolerance)


@pytest.mark.end_to_end
def test_two_workers_compare_questions_with_the_passages_of_both(tmp_path):
    folder = write_questions(tmp_path / "questions")
    settings = {
        **TINY,
        "model.kind": "retriever",
        "data.name": "question_folder",
        "data.directory": str(folder),
        "data.data_dir": str(tmp_path / "prepared"),
        "data.sequence_length": 16,
        "data.question_length": 12,
        "data.num_negatives": 1,
        "data.batch_size": 4,
    }
    # Two workers at once would each prepare it.
    load_question_answers("question_folder", "train", folder, tmp_path / "prepared")
    assert_two_workers_train_as_one_does(settings, tmp_path, 1e-5)


def assert_two_workers_train_as_one_does(settings, folder, tolerance):
    settings = {**settings, "optimizer.learning_rate": 1e-3}
    [one] = train(settings, folder / "one", 1)
    settings["trainer.strategy"] = "multi_worker"
    first, second = train(settings, folder / "two", 2)
    assert first["sum"] == second["sum"] and first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], one["losses"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(first["norm"], one["norm"], rtol=10 * tolerance)
    for shared, alone in zip(first["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(shared, alone, rtol=100 * tolerance, atol=10 * tolerance)
    log, alone = ((folder / name / "log.csv").read_text() for name in ("two", "one"))
    assert len(log.splitlines()) == len(alone.splitlines()) == 3


@pytest.mark.end_to_end
def test_workers_score_as_one_process_does(tiny_run, books, tmp_path):
    scores = {}
    command = [sys.executable, "-m", "rt_keras"]
    evaluate = ["evaluate", "--model", tiny_run, "--data", books, "--json"]
    several = ["launch", "--workers", "3", "--"]
    for name, words in {
        "one": [*evaluate, tmp_path / "one"],
        "three": [*several, *evaluate, tmp_path / "three", "--strategy", "multi_worker"],
    }.items():
        process = subprocess.run([*command, *words], capture_output=True, text=True)
        assert process.returncode == 0, process.stderr[-3000:]
        assert process.stdout.count("scores on the test split") == 1
        scores[name] = json.loads((tmp_path / name).read_text())
    assert scores["three"].keys() == scores["one"].keys()
    for key, value in scores["one"].items():
        assert scores["three"][key] == pytest.approx(value, rel=1e-5), key


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


def launch(settings, folder, *options):
    command = [
        sys.executable,
        "-m",
        "rt_keras",
        "launch",
        "--workers",
        "2",
        *options,
        "--",
        "train",
    ]
    given = [str(part) for part in overrides(settings)]
    return subprocess.Popen(
        [*command, "--config", "books", "--resume=auto", *given, "--output", str(folder)],
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


def wait_for_step(process, folder, step=1):
    while (Checkpoints(folder / "checkpoints").newest()[0] or 0) < step:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


@pytest.mark.end_to_end
def test_kills_of_one_worker_or_all_change_no_bit(tiny_settings, tmp_path):
    settings = {**tiny_settings, **RANDOM, "trainer.steps": 100, "trainer.validation_every": 50}
    settings["trainer.checkpoint_every"] = 7
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with launch(settings, whole) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    draw = random.Random(0)
    for number in range(int(os.environ.get("KILLS", 2))):
        step = Checkpoints(killed / "checkpoints").newest()[0] or 0
        with launch(settings, killed) as process:
            wait_for_step(process, killed, step + 1)
            time.sleep(draw.random())
            workers = workers_of(process)
            for worker in workers if draw.random() < 0.5 else draw.sample(workers, 1):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            output, _ = process.communicate(timeout=120)
        print(f"kill {number + 1}: at step {Checkpoints(killed / 'checkpoints').newest()[0]}")
        if process.returncode == 0:
            assert_equal_runs(killed, whole)
            shutil.rmtree(killed)
    with launch(settings, killed, "--restarts", "1") as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert_equal_runs(killed, whole)


@pytest.mark.end_to_end
def test_a_signal_stops_all_workers_after_the_same_step(tiny_settings, tmp_path):
    settings = {**tiny_settings, "trainer.steps": 10**6, "trainer.validation_every": 10**6}
    with launch(settings, tmp_path / "run") as process:
        wait_for_step(process, tmp_path / "run")
        # Only one worker gets it, as on a cluster.
        os.kill(workers_of(process)[-1], signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    step = Checkpoints(tmp_path / "run" / "checkpoints").newest()[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert f"stopped by SIGTERM after step {step:,}; --resume" in output
