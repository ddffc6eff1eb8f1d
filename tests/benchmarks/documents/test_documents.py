import pytest

from rt_keras.benchmarks import documents
from rt_keras.benchmarks.documents.training import train
from tests.benchmarks.checks import parse, rows, train_here
from tests.benchmarks.documents.test_pages import write_pages, write_vocabulary


@pytest.mark.weekly
def test_a_model_learns_is_scored_by_its_translations_and_has_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    train_here(monkeypatch, documents, train)
    paths = {"directory": write_pages(tmp_path / "pages"), "plot": tmp_path / "a.svg"}
    paths["vocabulary"] = write_vocabulary(tmp_path / "a.spm")
    small = {"steps": 20, "layers": 1, "width": 16, "length": 128, "part": 32, "keys": 12}
    small |= {"batch": 1, "translated": 1, "learning_rate": 1e-2, "kinds": "local_routing"}
    (found,) = documents.main(parse(documents, **paths, **small))["figures"]
    assert found["nats"][-1] < found["nats"][0] and paths["plot"].is_file()
    row = rows(capsys)[-2]
    assert row[:4] == ["local", "routing", f"{found['losses']['all']:.3f}", "-"]
    samplers = ("greedy", "beam", "random")
    scores = [found[score][sampler] for sampler in samplers for score in ("bleu", "chrf")]
    assert row[-7:-1] == [f"{score:.1f}" for score in scores]
