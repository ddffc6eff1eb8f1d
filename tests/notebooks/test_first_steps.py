from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.end_to_end

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "first_steps.ipynb"


def test_the_notebook_runs_from_its_first_cell_to_its_last():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # What training learns is not what is tested: a tenth of its steps will do.
    for cell in notebook.cells:
        cell.source = cell.source.replace("steps_per_epoch=100", "steps_per_epoch=10")
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "0.00% of" in printed and "def " in printed
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
