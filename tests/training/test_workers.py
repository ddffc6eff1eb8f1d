"""Two processes train one model, like two machines."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# All random features are on: dropout, restarts of clusters, two probes.
RANDOM = {"model.dropout": 0.1, "model.heads[0].num_probes": 2, "centroids.restart_after": 1}
# Prints the loss of each step, the norm of the last gradients, the scores of the trained model, and
# the sum of all variables of this worker after a run that is interrupted, or not.
TRAIN = """
import json
import signal
import sys
import keras
from rt_keras.callbacks.keep_state import Stopped
from rt_keras.training import run
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.experiment import Experiment
from tests.conftest import trace_fast
from tests.training.test_workers import sum_of, values_of

trace_fast()
settings, random, output = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
models, losses, make_model, make_callbacks = [], [], run.compiled_model, run._callbacks
# A process can connect to others only once.
strategy = run.make_strategy(settings["trainer.strategy"])
run.make_strategy = lambda *args: strategy

class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]))
        # Otherwise the next one would be a mean over the epoch.
        self.model.reset_metrics()

class Interrupt(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        # Only one worker gets it, as on a cluster.
        if step == 4 and not strategy.extended.should_checkpoint:
            signal.raise_signal(signal.SIGTERM)

def compiled_model(*args):
    models.append(make_model(*args))
    return models[-1]

def train(settings, folder, callback, **options):
    run._callbacks = lambda *args: [*make_callbacks(*args), callback]
    run.train(make_config(settings), f"{output}/{folder}", verbose=0, **options)
    return models[-1]

run.compiled_model = compiled_model
model = train(settings, "plain", Note())
found = {"losses": losses, "norm": model.gradient_norm, "weights": values_of(model)}
experiment = Experiment(make_config(settings))
model.preprocessor = experiment.preprocessor
found["scores"] = evaluate(model, experiment.load_split("test"))
if random:
    none = keras.callbacks.Callback()
    found["whole"] = sum_of(train(random, "whole", none))
    try:
        train(random, "resumed", Interrupt())
    except Stopped:
        found["resumed"] = sum_of(train(random, "resumed", none, resume=True))
print(json.dumps(found))
"""


def values_of(model):
    """The weights of this process, with the centroids, as lists."""
    # Without the random members from which clusters may restart.
    return [np.asarray(x).tolist() for x in model.weights if x.name != "member_samples"]


def sum_of(model):
    """A sum of all variables of this process, also of the optimizer."""
    values = [np.asarray(x) for x in (*model.variables, *model.optimizer.variables)]
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


def train(settings, random, output, workers):
    """The output of each worker."""
    command = [sys.executable, "-c", TRAIN, *map(json.dumps, (settings, random)), str(output)]
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(free_address()) for _ in range(workers)]
        cluster = {"worker": addresses}
        tasks = [{"type": "worker", "index": index} for index in range(workers)]
        configs = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "TF_CONFIG": config if workers > 1 else ""},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for config in configs
        ]
        outputs = [process.communicate(timeout=300) for process in processes]
    for process, (_, error) in zip(processes, outputs):
        assert process.returncode == 0, error[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@contextlib.contextmanager
def free_address():
    """Reserves an address on this machine."""
    with socket.socket() as held:
        # It does not listen, so servers that reuse addresses, such as TensorFlow's, still can.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield "127.0.0.1:{1}".format(*held.getsockname())


@pytest.mark.slow
def test_two_workers_train_and_score_as_one_does_and_stop_and_resume_with_equal_bits(
    tiny_settings, tmp_path
):
    settings = {**tiny_settings, "trainer.steps": 6, "trainer.validation_every": 3}
    settings |= {"trainer.strategy": "one_device", "optimizer.learning_rate": 1e-3}
    [one] = train(settings, None, tmp_path / "one", 1)
    # The last epoch has no sums of metrics from before the interruption, which workers share.
    random = {**settings, **RANDOM, "trainer.steps": 9, "trainer.checkpoint_every": 2}
    first, second = train(settings, random, tmp_path / "two", 2)
    assert first["losses"] == second["losses"] and first["weights"] == second["weights"]
    np.testing.assert_allclose(first["losses"], one["losses"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(first["norm"], one["norm"], rtol=1e-4)
    for shared, alone in zip(first["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(shared, alone, rtol=1e-3, atol=1e-4)
    assert first["scores"] == second["scores"] == pytest.approx(one["scores"], rel=1e-4)
    assert first["resumed"] == first["whole"] and second["resumed"] == second["whole"]
