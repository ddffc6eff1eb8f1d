import pytest

from rt_keras.benchmarks import approximate
from tests.benchmarks.checks import parse, rows


@pytest.mark.weekly
def test_models_are_trained_adapted_and_distilled(monkeypatch, capsys):
    # Without a process of its own.
    monkeypatch.setattr(approximate, "_measure_alone", approximate._measure)
    small = {"length": 64, "keys": 16, "width": 16, "heads": 2, "steps": 20, "batch": 2}
    args = parse(approximate, tasks="span", kinds=["full", "nearest"], distill_steps=2, **small)
    args.time_lengths = ()
    full, nearest = approximate.main(args)["figures"]
    assert 0 <= nearest["accuracy_distilled"] <= 1 and full["kind"] == "full"
    assert [f"{nearest['loss']:.3f}"] in [row[2:3] for row in rows(capsys)]
