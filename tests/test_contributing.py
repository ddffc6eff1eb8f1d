"""Tests of the examples for contributors, in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "contributing"
TASK = """
import tensorflow as tf
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.experiment import Experiment
from rt_keras.training.tasks import task_of

experiment = Experiment(make_config({
    "model.kind": "backward_lm", "model.num_layers": 1, "model.hidden_dim": 8,
    "model.heads": [{"class": "FirstHeads", "num_heads": 2, "num_keys": 3}],
    "data.sequence_length": 16,
}))
model = experiment.make_model()
model.preprocessor = experiment.preprocessor
assert task_of(model) is experiment.task
scores = evaluate(model, tf.data.Dataset.from_tensors("some text"), batch_size=1)
print(scores["bytes"], sorted(name for name, _ in experiment.task.units))
"""


HEADS = """
import keras
import numpy as np
from rt_keras import ops
from rt_keras.layers import FirstHeads, Heads
from rt_keras.layers.key_sets.first_keys import FirstKeys

x = keras.random.normal([2, 4, 9, 5])
mask = np.arange(9) < 7 * np.ones([2, 1])
seen = np.tile(np.arange(9) < 3, [2, 9, 1])
expected = ops.full_attention(
    x, x, x, query_mask=mask, key_mask=mask, attention_mask=seen, causal=True
)
for heads in (FirstHeads(4, 3), Heads(4, [FirstKeys(3)])):
    output = heads(x, x, x, query_mask=mask, key_mask=mask, use_causal_mask=True)
    np.testing.assert_allclose(output, expected, atol=1e-5)
"""


def block(page, language, path):
    """The block of code that follows the name of a file on a page."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.search(rf"^`{path}`.*?^```{language}\n(.*?)```", text, re.DOTALL | re.MULTILINE)[1]


def patched(text, diff):
    """Applies a diff to a text, which must contain its removed and unchanged lines."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(before) == 1, before
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    return text


UNION = """
import keras
import numpy as np
from rt_keras.layers import Heads
from rt_keras.layers.local_strided_heads import LocalStridedHeads

heads = LocalStridedHeads(2, block_size=4, stride=3)
x = keras.random.normal([2, 2, 15, 6])
copy = Heads.from_config(heads.get_config())
np.testing.assert_array_equal(
    copy(x, x, x, use_causal_mask=True), heads(x, x, x, use_causal_mask=True)
)
"""


# Files of each page, which are new or change.
EXAMPLES = {
    "add_heads.md": (
        "rt_keras/layers/local_strided_heads.py",
        "rt_keras/layers/key_sets/first_keys.py",
        *("rt_keras/ops/first.py", "rt_keras/layers/first_heads.py"),
        "rt_keras/layers/__init__.py",
    ),
    "add_task.md": (
        "rt_keras/training/tasks/backward_lm.py",
        "rt_keras/training/tasks/__init__.py",
        "rt_keras/training/config.py",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the project with the files of all examples."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("rt_keras", "configs", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for page, paths in EXAMPLES.items():
        for path in paths:
            if (folder / path).exists():
                text = patched((folder / path).read_text(), block(page, "diff", path))
            else:
                text = block(page, "python", path)
            (folder / path).write_text(text)
    return folder


def output(folder, *command):
    """Runs Python in the copy; returns the output."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_heads_of_the_example_are_in_the_suite_of_the_contract(copy):
    suite = [f"tests/contract/test_{name}.py" for name in ("options", "claims", "models")]
    options = ["-m", "not weekly", "-k", "FirstHeads", "-q", "-p", "no:cacheprovider"]
    printed = output(copy, "-m", "pytest", *suite, *options)
    assert re.search(r"\b[1-9]\d+ passed", printed), printed


def test_the_heads_a_union_and_the_task_of_the_examples_are_made_like_any_others(copy):
    assert output(copy, "-c", HEADS + UNION + TASK).startswith("9 ['bits_per_byte', ")
