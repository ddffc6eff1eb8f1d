"""The packages that rt_keras needs, and their installed versions, from the installer's records.

Nothing is imported, so missing and broken packages do no harm.
"""

import dataclasses
from importlib import metadata

DISTRIBUTION = "rt_keras"


@dataclasses.dataclass(frozen=True)
class Package:
    """A package that rt_keras or one of its extras needs.

    Attributes:
        name: string.
        needed: string, the supported versions, such as ">=3.15,<3.16".
        version: string, the installed version; None if the package is not installed.
    """

    name: str
    needed: str
    version: str | None

    @property
    def problem(self):
        """The problem with the installed version, in words; None if there is no problem.

        >>> Package("keras", ">=3.15,<3.16", "3.15.1").problem
        >>> Package("keras", ">=3.15,<3.16", "3.14.0").problem
        'keras is 3.14.0 and must be >=3.15,<3.16'
        >>> Package("matplotlib", ">=3.8,<4", None).problem
        'matplotlib is missing'
        """
        from packaging.specifiers import SpecifierSet

        if self.version is None:
            return f"{self.name} is missing"
        if not SpecifierSet(self.needed).contains(self.version, prereleases=True):
            return f"{self.name} is {self.version} and must be {self.needed}"
        return None


def needed_packages():
    """Returns the packages that rt_keras needs on this Python, with their installed versions.

    Returns:
        A dictionary from "", for the base, and from the name of each extra to a list of `Package`s.

    Raises:
        ModuleNotFoundError: if rt_keras itself is not installed.

    >>> [package.name for package in needed_packages()["plot"]]
    ['matplotlib']
    """
    from packaging.requirements import Requirement

    try:
        declared = list(map(Requirement, metadata.requires(DISTRIBUTION) or ()))
        extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            "rt_keras is not installed, so its requirements are unknown; run `pip install .` in "
            "its folder"
        ) from None
    base = [x for x in declared if _counts(x, "")]
    found = {"": base} | {
        extra: [x for x in declared if x not in base and _counts(x, extra)] for extra in extras
    }
    return {extra: list(map(_package, needed)) for extra, needed in found.items()}


def needed_python():
    """Returns the versions of Python that rt_keras supports, such as ">=3.11,<3.13".

    >>> needed_python().startswith(">=3.11")
    True
    """
    return ",".join(sorted(metadata.metadata(DISTRIBUTION)["Requires-Python"].split(","))[::-1])


def _counts(requirement, extra):
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _package(requirement):
    specifiers = sorted(map(str, requirement.specifier), reverse=True)
    return Package(requirement.name, ",".join(specifiers), installed_version(requirement.name))


def installed_version(name):
    """Returns the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
