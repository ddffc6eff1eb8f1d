import pytest


@pytest.mark.slow
def test_versions_are_numbered(run, tiny_run, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").touch()
    status, output, _ = run("export", "--model", tiny_run, "--output", tmp_path)
    assert status == 0 and str(tmp_path / "2") in output
    assert (tmp_path / "2" / "saved_model.pb").exists()
