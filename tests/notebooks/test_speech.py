import pytest

from tests.benchmarks.speech.test_training import write_speech
from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    changes = {
        '"../my/prompts"': repr(str(write_speech(tmp_path / "prompts"))),
        "steps = 1200": "steps = 8",
        "changes = {\n": 'changes = {\n    "model.num_layers": 1, "schedule.warmup_steps": 2,\n',
        '"model.hidden_dim": 192': '"trainer.jit_compile": False, "model.hidden_dim": 16',
    }
    printed, pictures = checks.run("speech", changes)
    assert "8 sentences, such as 'la'" in printed or "8 sentences, such as 'do'" in printed
    assert "character error rate" in printed
    assert pictures == 1
