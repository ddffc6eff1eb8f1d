import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    changes = {
        '["docstrings", ': '["docstrings", "--limit", "300", ',
        "steps = 250": "steps = 4",
        "steps = 300": "steps = 4",
        '"model.hidden_dim": 64': '"trainer.jit_compile": False, "model.hidden_dim": 16',
        '"model.projection_dim"': '"model.num_layers": 1, "model.projection_dim"',
        "steps // 10": "1",
    }
    printed, pictures = checks.run("retrieval", changes)
    assert "300 documents" in printed
    assert "recall_at_1" in printed
    assert "the right passage: " in printed
    assert printed.count("What does dedent do, in textwrap?") == 2
    assert pictures == 1
