import re
from pathlib import Path

import nbformat

from tests.notebooks import checks


def test_each_notebook_is_run_by_a_test_and_saved_without_outputs():
    paths = sorted(checks.NOTEBOOKS.glob("*.ipynb"))
    assert len(paths) == 6
    for path in paths:
        assert Path(__file__).with_name(f"test_{path.stem}.py").exists()
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells)
        assert notebook.cells[0].source.startswith("# ")
        assert not re.search(r"/(tmp|home|root|Users|opt)/", path.read_text(encoding="utf-8"))
