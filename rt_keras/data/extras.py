"""Packages that only an extra installs."""

import contextlib


@contextlib.contextmanager
def needed(extra, purpose):
    """Adds to the error of a failed import the extra that installs the package.

    Args:
        extra: string, the name of an extra in `setup.py`.
        purpose: string, the subject of the error message.

    Raises:
        ModuleNotFoundError: if a package imported in the `with` block is not installed.

    >>> with needed("plot", "Drawing"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: Drawing needs the extra `plot`: pip install 'rt_keras[plot]'
    (No module named 'no_such_package')
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs the extra `{extra}`: pip install 'rt_keras[{extra}]' ({error})",
            name=error.name,
        ) from None
