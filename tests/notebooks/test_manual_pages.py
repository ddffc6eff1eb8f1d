import re

import pytest

from rt_keras.training.config import load_config
from rt_keras.training.run import train
from tests.benchmarks.documents.test_pages import write_pages, write_vocabulary
from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    pages = write_pages(tmp_path / "pages")
    settings = {
        "model.hidden_dim": 16,
        "model.intermediate_dim": 16,
        "tokenizer.vocabulary": write_vocabulary(tmp_path / "a.spm"),
        "data.directory": pages,
        "data.sequence_length": 128,
        "schedule.warmup_steps": 1,
        "trainer.steps": 2,
        "trainer.validation_every": 2,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    train(load_config("translate_pages", overrides), tmp_path / "run", verbose=0)
    changes = {
        "../my/pages": str(pages),
        "../runs/pages": str(tmp_path / "run"),
        ">= 600": ">= 60",
        "length = 512": "length = 20",
        "constant(64)": "constant(4)",
    }
    printed, pictures = checks.run("manual_pages", changes)
    assert re.search(r"\d+ test pages; the model has [\d,]+ weights", printed)
    assert "nats per token" in printed and "--- German\nNAME" in printed
    assert pictures == 1
