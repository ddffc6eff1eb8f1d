"""Figures of matplotlib in files."""

import contextlib
from pathlib import Path

from rt_keras.data import extras
from rt_keras.files import whole_file


@contextlib.contextmanager
def drawing(path, dpi=120, **kwargs):
    """Yields a figure and writes it to a file at the end, atomically.

    The file is reproducible: the same figure always gives the same bytes.

    Args:
        path: string or `Path`, the file. Its extension (`.png`, `.svg` or `.pdf`) sets the format.
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
