"""Runs a notebook."""

from pathlib import Path

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# Run before the first cell.
TRACE_FAST = """
import sys
sys.path.append("..")
from tests.conftest import trace_fast
trace_fast()
"""


def run(name, changes):
    """Executes a notebook from its first cell to its last.

    Args:
        name: string, its file name without the suffix.
        changes: dict from texts in its cells to their replacements. The result of training is not
            tested, so a few steps are enough.

    Returns:
        The printed text, as one string, and the number of pictures.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for text, instead in changes.items():
        assert any(text in cell.source for cell in notebook.cells), text
        for cell in notebook.cells:
            cell.source = cell.source.replace(text, instead)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(TRACE_FAST))
    # Jupyter runs notebooks in their folder.
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = nbclient.NotebookClient(notebook, timeout=600, resources=resources)
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not any(output.output_type == "error" for output in outputs)
    printed = "".join(output.get("text", "") for output in outputs)
    return printed, sum("image/png" in output.get("data", {}) for output in outputs)
