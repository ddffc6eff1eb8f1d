import pytest

from tests.data.test_idx_images import write_folder
from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    write_folder(tmp_path / "idx", shape=(28, 28))
    changes = {
        "/usr/share/datasets/fashion-mnist": str(tmp_path / "idx"),
        "steps = 1000": "steps = 8",
        'changes = {"': f'changes = {{{SMALLER} "',
    }
    printed, pictures = checks.run("fashion_mnist", changes)
    assert "PNG: " in printed and "the model: " in printed
    assert "equal to the output of the model: True" in printed
    assert pictures == 1


SMALLER = """
    "model.num_layers": 1,
    "model.hidden_dim": 16,
    "schedule.warmup_steps": 2,
    "trainer.jit_compile": False,
"""
