import pytest

from tests.cli.checks import assert_one_line


@pytest.mark.end_to_end
def test_versions_are_numbered_and_never_replaced(run, tiny_run, tmp_path):
    folder = tmp_path / "exported"
    for version in ("1", "2"):
        status, output, _ = run("export", "--model", tiny_run, "--output", folder)
        assert status == 0 and str(folder / version) in output
        assert (folder / version / "saved_model.pb").exists()
    status, _, error = run("export", "--model", tiny_run, "--output", folder / "1")
    assert_one_line(status, error, "already exists; name a new")
