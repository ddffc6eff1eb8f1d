"""Drawings of matplotlib in files."""

import contextlib
from pathlib import Path

from rt_keras import extras
from rt_keras.files import whole_file


@contextlib.contextmanager
def drawing(path, dpi=120, **kwargs):
    """A drawing that is written to a file, completely or not at all, at the end.

    The same drawing gives the same file whenever it is drawn.

    Args:
        path: string or `Path`, the file; its ending (`.png`, `.svg` or `.pdf`) sets the format.
        dpi: int, dots per inch. Defaults to 120.
        **kwargs: keyword arguments of `matplotlib.figure.Figure`, such as `figsize`.

    Yields:
        A `matplotlib.figure.Figure`.

    Raises:
        ModuleNotFoundError: without the extra `plot`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "line.svg")
    >>> with drawing(path, figsize=(2, 1)) as figure:
    ...     _ = figure.subplots().plot([1, 2])
    >>> path.read_text().startswith("<?xml")
    True
    """
    with extras.needed("plot", "Drawing"):
        import matplotlib
        from matplotlib.figure import Figure

    path, figure = Path(path), Figure(layout="constrained", **kwargs)
    yield figure
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with (
        matplotlib.rc_context({"svg.hashsalt": path.stem}),
        whole_file(path, suffix=path.suffix) as part,
    ):
        figure.savefig(part, dpi=dpi, metadata=metadata)
