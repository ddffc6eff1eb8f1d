"""Every notebook runs from its first cell to its last, and is stored with what it printed."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.data.test_idx_images import write_folder
from tests.models.adapted.llama_folder import write_llama
from tests.training.tasks.test_ctc import write_tones

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# Run before the first cell.
TRACE_FAST = """
import sys
sys.path.append("..")
from tests.conftest import trace_fast
trace_fast()
"""


def run(name, changes, *patterns, pictures=1):
    """Executes a notebook from its first cell to its last.

    Args:
        name: string, its file name without the suffix.
        changes: dict from texts in its cells to their replacements. The result of training is not
            tested, so a few steps are enough.
        *patterns: regular expressions, which the printed text must match.
        pictures: int, the number of pictures that it must show. Defaults to 1.

    Returns:
        The printed text, as one string.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for text, instead in changes.items():
        assert any(text in cell.source for cell in notebook.cells), text
        for cell in notebook.cells:
            cell.source = cell.source.replace(text, instead)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(TRACE_FAST))
    # Jupyter runs notebooks in their folder.
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = nbclient.NotebookClient(notebook, timeout=600, resources=resources)
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not any(output.output_type == "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
    printed = "".join(output.get("text", "") for output in outputs)
    assert not [pattern for pattern in patterns if not re.search(pattern, printed)]
    return printed


@pytest.fixture(autouse=True)
def prepared_data_sets_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))


def test_each_notebook_is_run_by_a_test_and_stored_with_what_it_printed():
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert len(paths) == 11
    for path in paths:
        assert f"test_{path.stem}" in globals()
        notebook = nbformat.read(path, as_version=4)
        assert_executed([cell for cell in notebook.cells if cell.cell_type == "code"])
        assert notebook.cells[0].source.startswith("# ")
        assert not re.search(r"/(tmp|home|root|Users|opt)/", path.read_text(encoding="utf-8"))


def assert_executed(cells):
    """`notebooks/execute.py` ran them in order, without an error, and left warnings out."""
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)


def less_text(folder):
    """Changes that take a short text instead of Python's library."""
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "1.txt").write_text("def main():\n    return 0\n" * 2000)
    return {'"python_source", "train", ': f'"text_folder", "train", {str(folder)!r}, '}


@pytest.mark.slow
def test_first_steps(tmp_path):
    changes = {"steps_per_epoch=100": "steps_per_epoch=4", **less_text(tmp_path)}
    run("first_steps", changes, "0.00% of", "def ")


@pytest.mark.weekly
def test_own_model(tmp_path):
    changes = {"steps = 200": "steps = 10", **less_text(tmp_path)}
    run("own_model", changes, "the loaded model agrees: True", "the exported model agrees: True")


@pytest.mark.weekly
def test_adapt(tmp_path):
    folder = write_llama(tmp_path / "llama", max_position_embeddings=512)
    changes = {
        "draw(9600)": "draw(320)",
        'Path("SmolLM2-135M")': f"Path({str(folder)!r})",
    }
    printed = run("adapt", changes, "a window and blocks:", "of 37", "trained on 512 positions")
    # As adapted, and as loaded again.
    assert printed.count("Once upon a time") == 2


@pytest.mark.weekly
def test_from_tensor2tensor():
    printed = run("from_tensor2tensor", {}, "bits per byte", "'It was")
    assert float(re.search(r"largest difference of a logit: (\S+)", printed)[1]) < 2e-5


@pytest.mark.weekly
def test_long_text(tmp_path):
    folder = write_llama(tmp_path / "llama", max_position_embeddings=4096)
    changes = {
        '"gemma-3-270m"': repr(str(folder)),
        'sampler="greedy"': 'sampler="greedy", jit_compile=False',
        "[:12000]": "[:1500]",
        "tokens[:4000]": "tokens[:1200]",
    }
    printed = run("long_text", changes)
    # With the blocks, and without them.
    assert printed.count("barrel of") >= 2


@pytest.mark.weekly
def test_images():
    changes = {
        "num_layers=2": "num_layers=1",
        "steps_per_epoch=200": "steps_per_epoch=4",
        "range(2000)": "range(40)",
    }
    run("images", changes, "bits per value", pictures=2)


SMALLER_IMAGES = """
    "model.num_layers": 1,
    "model.hidden_dim": 16,
    "schedule.warmup_steps": 2,
    "trainer.jit_compile": False,
"""


@pytest.mark.weekly
def test_fashion_mnist(tmp_path):
    write_folder(tmp_path / "idx", shape=(28, 28))
    changes = {
        "/usr/share/datasets/fashion-mnist": str(tmp_path / "idx"),
        "steps = 1000": "steps = 8",
        'changes = {"': f'changes = {{{SMALLER_IMAGES} "',
    }
    run("fashion_mnist", changes, "PNG: ", "the model: ", "equal to the output of the model: True")


SMALLER_PAGES = """
    "data.sequence_length": 128,
    "model.num_encoder_layers": 1,
    "model.num_layers": 1,
    "model.num_lower_layers": 0,
    "model.cross_heads": "[{class: FullHeads, num_heads: 4}]",
    "model.heads[0].block_size": 8,
    "model.heads[0].num_clusters": 4,
    "model.heads[0].window_size": 8,
    "model.heads[0].max_relative_distance": 15,
    "model.lower_heads[0].block_size": 8,
    "model.lower_heads[0].max_relative_distance": 23,
    "schedule.warmup_steps": 2,
    "trainer.jit_compile": False,
"""


SOURCE = "NAME\n   alarm - sets it\n\nNOTES\n   alarm() sets alarm()\n\nSEE ALSO\n   time"
TARGET = "NAME\n   alarm - stellt ihn\n\nNOTIZEN\n   alarm() stellt alarm()"


def write_pages(folder):
    """Writes parallel pages, with pages in each split."""
    for side, text in (("source", SOURCE), ("target", TARGET)):
        (folder / side).mkdir(parents=True)
        for number in range(60):
            path = folder / side / f"page{number}.txt"
            path.write_text(text + f"\n   x{number}x and x{number}x")
    return folder


@pytest.mark.weekly
def test_manual_pages(tmp_path):
    changes = {
        '"../my/pages"': repr(str(write_pages(tmp_path / "pages"))),
        "texts, 4096": "texts, 330",
        "4094": "126",
        "steps = 500": "steps = 8",
        '"data.sequence_length": 512': '"data.sequence_length": 64',
        "changes = {\n": "changes = {\n" + SMALLER_PAGES,
        '"model.hidden_dim": 128': '"model.hidden_dim": 16',
        "n > 1000": "n > 10",
    }
    sides = "==== English", "==== Model"
    run("manual_pages", changes, "pages for training", "nats per token of ", *sides)


@pytest.mark.weekly
def test_retrieval():
    changes = {
        '"docstrings", folder]': '"docstrings", folder, "--limit", "300"]',
        "steps = 250": "steps = 4",
        "steps = 300": "steps = 4",
        '"model.hidden_dim": 64': '"trainer.jit_compile": False, "model.hidden_dim": 16',
        '"model.projection_dim"': '"model.num_layers": 1, "model.projection_dim"',
        "steps // 10": "1",
    }
    printed = run("retrieval", changes, "300 documents", "recall_at_1", "the right passage: ")
    assert printed.count("What does dedent do, in textwrap?") == 2


@pytest.mark.weekly
def test_speech(tmp_path):
    tones, counts = {"la": 400, "do": 1200}, {"train": 8, "validation": 8, "test": 8}
    changes = {
        '"../my/prompts"': repr(str(write_tones(tmp_path / "prompts", tones, **counts))),
        "steps = 1200": "steps = 8",
        "changes = {\n": 'changes = {\n    "model.num_layers": 1, "schedule.warmup_steps": 2,\n',
        '"model.hidden_dim": 192': '"trainer.jit_compile": False, "model.hidden_dim": 16',
    }
    run("speech", changes, "8 sentences, such as '(la|do)'", "character error rate")


@pytest.mark.weekly
def test_whole_book():
    changes = {
        "steps = 400": "steps = 10",
        "num_layers=2": "num_layers=1",
        "jit_compile=True": "jit_compile=False",
        "[:300_000]": "[:5_000]",
    }
    run(
        "whole_book",
        changes,
        r"stateful: \d\.\d+ bits per byte of 5,000 bytes",
        r"5,000 tokens read; the state had \{\d+\} bytes after each chunk",
        "▸",
    )
