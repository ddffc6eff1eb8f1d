import re
from pathlib import Path

import nbformat

from tests.notebooks import checks


def test_each_notebook_is_run_by_a_test_and_stored_with_what_it_printed():
    paths = sorted(checks.NOTEBOOKS.glob("*.ipynb"))
    assert len(paths) == 11
    for path in paths:
        assert Path(__file__).with_name(f"test_{path.stem}.py").exists()
        notebook = nbformat.read(path, as_version=4)
        assert_executed([cell for cell in notebook.cells if cell.cell_type == "code"])
        assert notebook.cells[0].source.startswith("# ")
        assert not re.search(r"/(tmp|home|root|Users|opt)/", path.read_text(encoding="utf-8"))


def assert_executed(cells):
    """`notebooks/execute.py` ran them in order, without an error, and left warnings out."""
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
