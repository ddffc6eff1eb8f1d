"""Imports on first use: the public names of a folder, and the classes that Keras saves by name.

A folder of this package lists its public names with the modules that define them, and imports a
module when one of its names is used. So a program imports only what it needs.
"""

import importlib
import pkgutil
import sys


def names_on_first_use(package, modules):
    """Makes the functions with which Python finds the names of a package (PEP 562).

    Submodules are attributes too, as if the package had imported them.

    Args:
        package: string, the `__name__` of the package.
        modules: dictionary from public names to the modules that define them, relative to the
            package.

    Returns:
        The `__getattr__` and the `__dir__` of the package.

    >>> find, _ = names_on_first_use("rt_keras.layers", {"LocalHeads": "kinds"})
    >>> find("LocalHeads").__module__, find("heads").__name__
    ('rt_keras.layers.kinds', 'rt_keras.layers.heads')
    """

    def submodules():
        path = sys.modules[package].__path__
        return {module.name for module in pkgutil.iter_modules(path)} - {"__main__"}

    def find(name):
        if name in modules:
            return getattr(importlib.import_module(f".{modules[name]}", package), name)
        if name in submodules():
            return importlib.import_module(f".{name}", package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names():
        return sorted({*vars(sys.modules[package]), *modules, *submodules()})

    return find, names


def import_saved_classes():
    """Imports all classes that Keras saves by name."""
    importlib.import_module("rt_keras.training.schedule")
    endings = {"layers": "", "layers.key_sets": "", "models": "", "convert": ""}
    for name, ending in {**endings, "data": "Tokenizer"}.items():
        package = importlib.import_module(f"rt_keras.{name}")
        for public in package.__all__:
            if public.endswith(ending):
                getattr(package, public)
