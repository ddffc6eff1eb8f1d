import numpy as np
import pytest

from rt_keras.benchmarks.documents import pages as pages_lib
from rt_keras.benchmarks.documents.training import losses, train
from rt_keras.data import SentencePieceTokenizer
from tests.benchmarks.documents.test_pages import write_pages, write_vocabulary

SETTINGS = {
    "seed": 0,
    "steps": 20,
    "layers": 1,
    "width": 16,
    "length": 128,
    "part": 32,
    "keys": 12,
    "batch": 1,
    "translated": 1,
    "learning_rate": 1e-2,
}


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    paths = write_pages(tmp_path / "pages"), write_vocabulary(tmp_path / "a.spm")
    return {**SETTINGS, "directory": str(paths[0]), "vocabulary": str(paths[1])}


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", ["local_routing", "full_parts"])
def test_models_learn_and_are_scored(settings, kind):
    reports = []
    found = train({**settings, "kind": kind}, lambda *message: reports.append(message))
    assert found["nats"][-1] < found["nats"][0] and len(found["nats"]) == 20
    assert set(found["losses"]) > {"all", "again", "256"} and found["weights"] > 1000
    assert 0 <= found["bleu"]["greedy"] <= 100 and 0 <= found["chrf"]["beam"] <= 100
    assert 0 <= found["bleu"]["random"] <= 100
    *_, last, greedy, beam, drawn = reports
    assert last[0] == "test" and last[1]["step"] == 20
    assert greedy == ("note", "1 of 1 pages translated, greedy") and beam[1].endswith("beam")
    assert drawn[1].endswith("random")


def test_losses_are_means_over_groups(tmp_path):
    tokenizer = SentencePieceTokenizer(str(write_vocabulary(tmp_path / "a.spm")))
    words = [list(map(int, tokenizer(word))) for word in ("alarm()", "page", "alarm()")]
    target = [token for word in words for token in word]
    nats = np.arange(len(target), dtype="float32")
    splits = {"train": [[([1], [2])]], "test": [[([1], target)]]}
    found = losses([nats], splits, tokenizer, {"keys": 1, "part": 2})
    again = nats[-len(words[2]) :].mean()
    assert found["all"] == found["256"] == nats.mean()
    assert found["again"] == found["far"] == again and "near" not in found
    assert found["new"] == nats[: -len(words[2])].mean()
    # Of parts, one after another.
    assert losses([nats[:2], nats[2:]], splits, tokenizer, {"keys": 1, "part": 2}) == found
    assert pages_lib.joined(splits["test"][0])[1] == target
