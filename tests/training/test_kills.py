"""Runs that are killed at random times end with the same bits as an uninterrupted one.

`KILLS=100 python -m pytest -m slow -s tests/training/test_kills.py` kills a hundred times.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from rt_keras.callbacks.checkpoints import Checkpoints
from tests.cli.checks import overrides
from tests.training.test_run import assert_equal_runs

SETTINGS = {
    "trainer.steps": 60,
    "trainer.validation_every": 20,
    "trainer.checkpoint_every": 1,
    "model.dropout": 0.1,
    "model.heads[0].num_probes": 2,
    "centroids.restart_after": 1,
}


def command(settings, folder):
    given = [str(part) for part in overrides(settings)]
    train = [sys.executable, "-m", "rt_keras", "train", "--config", "books", "--resume=auto"]
    return [*train, *given, "--output", str(folder)]


def steps(folder):
    return [0, *Checkpoints(folder / "checkpoints").steps()][-1]


@pytest.mark.slow
def test_kills_change_no_bit(tiny_settings, tmp_path):
    settings = {**tiny_settings, **SETTINGS}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(settings, whole), check=True, capture_output=True)
    draw = random.Random(0)
    for number in range(int(os.environ.get("KILLS", 1))):
        # Every step writes a checkpoint, so about half of the kills are in the middle of writing.
        after = draw.randrange(steps(killed), SETTINGS["trainer.steps"])
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command(settings, killed), **output) as process:
            while steps(killed) <= after and process.poll() is None:
                time.sleep(0.001)
            time.sleep(draw.random() / 20)
            process.kill()
            printed, _ = process.communicate()
        print(f"kill {number + 1}: at step {steps(killed)}")
        assert process.returncode in (0, -signal.SIGKILL), printed
        if process.returncode == 0 or steps(killed) == SETTINGS["trainer.steps"]:
            # It has finished; the next one starts from step 0.
            assert_equal_runs(killed, whole)
            shutil.rmtree(killed)
    subprocess.run(command(settings, killed), check=True, capture_output=True)
    assert_equal_runs(killed, whole)
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}
