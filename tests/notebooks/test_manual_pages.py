import pytest

from tests.benchmarks.documents.test_pages import write_pages
from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    changes = {
        '"../my/pages"': repr(str(write_pages(tmp_path / "pages"))),
        "texts, 4096": "texts, 330",
        "4094": "126",
        "steps = 500": "steps = 8",
        '"data.sequence_length": 512': '"data.sequence_length": 64',
        "changes = {\n": "changes = {\n" + SMALLER,
        '"model.hidden_dim": 128': '"model.hidden_dim": 16',
        "n > 1000": "n > 10",
    }
    printed, pictures = checks.run("manual_pages", changes)
    assert "pages for training" in printed and "nats per token of " in printed
    assert "==== English" in printed and "==== Model" in printed
    assert pictures == 1


SMALLER = """
    "data.sequence_length": 128,
    "model.num_encoder_layers": 1,
    "model.num_layers": 1,
    "model.local_routing.block_size": 8,
    "model.local_routing.num_clusters": 4,
    "model.local_routing.window_size": 8,
    "model.local_routing.max_relative_distance": 15,
    "model.local.block_size": 8,
    "model.local.max_relative_distance": 23,
    "schedule.warmup_steps": 2,
    "trainer.jit_compile": False,
"""
