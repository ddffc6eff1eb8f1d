"""The examples of CONTRIBUTING.md, in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SCRIPT = """
import tensorflow as tf
from rt_keras.training import experiment, tasks
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate

config = make_config({
    "model.kind": "backward_lm", "model.num_layers": 1, "model.hidden_dim": 8,
    "model.local.block_size": 8, "model.routing.window_size": 8, "data.sequence_length": 16,
})
task = tasks.task_named("backward_lm")
model = experiment.make_model(config)
model.preprocessor = task.make_preprocessor(config)
assert tasks.task_of(model) is task
scores = evaluate(model, tf.data.Dataset.from_tensors("some text"), batch_size=1)
print(scores["bytes"], sorted(name for name, _ in task.units))
"""


def block(language, path):
    """The block of code that follows the name of a file."""
    return re.search(rf"`{path}`:\n\n```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def patched(text, diff):
    """A text with the changes of a diff, whose removed and kept lines are in it."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(before) == 1, before
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    return text


def test_the_task_of_the_example_is_made_and_scored_like_any_other(tmp_path):
    shutil.copytree(ROOT / "rt_keras", tmp_path / "rt_keras")
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    task, table = (f"rt_keras/training/tasks/{name}.py" for name in ("backward_lm", "__init__"))
    (tmp_path / task).write_text(block("python", task))
    (tmp_path / table).write_text(patched((tmp_path / table).read_text(), block("diff", table)))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("9 ['bits_per_byte', "), result.stdout
