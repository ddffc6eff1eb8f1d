import os

from rt_keras.cli import doctor
from tests.installed import record


def test_an_extra_that_is_missing_or_broken_and_a_base_that_does_not_do(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(doctor, "MODULES", {"": ("json",), "plot": ("plot_of_a_test",)})
    (tmp_path / "plot_of_a_test.py").write_text("raise OSError('libplot.so: not found')")
    record(tmp_path, ["rich>=13", 'no-such-package; extra == "plot"'])
    status, output, _ = run("doctor")
    assert status == 0 and "no problem found" in output
    assert "pip install 'rt_keras[plot]'" in output
