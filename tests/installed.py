"""A record of an installation of rt_keras that tests make up."""

import os


def record(folder, requires, python=">=3.11"):
    """Writes what an installer would have recorded of rt_keras.

    Args:
        folder: `Path` of a folder that comes first in `sys.path`.
        requires: list of strings, as `Requires-Dist` has them.
        python: string, the versions of Python that are supported.
    """
    extras = {text.split('extra == "')[1].rstrip('"') for text in requires if "extra" in text}
    lines = [
        "Metadata-Version: 2.1",
        "Name: rt_keras",
        "Version: 9",
        f"Requires-Python: {python}",
        *(f"Requires-Dist: {text}" for text in requires),
        *(f"Provides-Extra: {extra}" for extra in sorted(extras)),
    ]
    (folder / "rt_keras-9.dist-info").mkdir()
    (folder / "rt_keras-9.dist-info" / "METADATA").write_text("\n".join(lines) + os.linesep)
