"""Packages that only an extra of the installation brings."""

import contextlib


@contextlib.contextmanager
def needed(extra, purpose):
    """Makes a failed import say which extra brings the package.

    Args:
        extra: the name of an extra in `setup.py`.
        purpose: what needs it, as the start of a sentence.

    Raises:
        ModuleNotFoundError: if a package that is imported inside is not installed.

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
