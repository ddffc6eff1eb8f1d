import os

from rt_keras.try_imports import try_imports


def test_each_module_is_tried_even_after_one_that_ends_the_process(tmp_path, monkeypatch):
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    (tmp_path / "ending_module.py").write_text("import os; os._exit(7)")
    (tmp_path / "raising_module.py").write_text("raise RuntimeError('two\\nlines')")
    problems, devices = try_imports(["ending_module", "json", "raising_module"])
    ended = "importing it ended the process with status 7"
    raised = "RuntimeError: two lines"
    assert problems == {"ending_module": ended, "json": None, "raising_module": raised}
    assert devices == []
