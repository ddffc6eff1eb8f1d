"""Executes notebooks and stores their outputs: `python notebooks/execute.py NAME ...`.

The site shows notebooks with their stored outputs, so run this after changing one. Outputs that
depend on the machine are removed: warnings, paths and times. Needs the extra `test`.
"""

import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parent
# The time of an epoch in Keras's logs, and TensorFlow's lines on written files.
OF_THE_MACHINE = re.compile(r"(?<=\d) - \d+m?s - \d+m?s/step|^INFO:tensorflow:.*\n", re.MULTILINE)


def execute(name):
    """Executes a notebook from its first cell to its last and writes it with its outputs.

    Args:
        name: string, its file name without the suffix.
    """
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = nbclient.NotebookClient(
        notebook, timeout=3600, resources=resources, record_timing=False
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(cleaned(cell.outputs))
    nbformat.write(notebook, path)


def cleaned(outputs):
    """Yields the outputs of a cell without those of the machine, and printed text as one output."""
    printed = None
    for output in outputs:
        if output.output_type != "stream":
            printed = None
            yield output
        elif output.name == "stdout" and (text := OF_THE_MACHINE.sub("", output.text)):
            if printed is None:
                printed = output
                printed.text = text
                yield printed
            else:
                printed.text += text


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for argument in sys.argv[1:]:
        execute(argument)
