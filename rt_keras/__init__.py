"""Routing Transformers in Keras.

If Keras is already imported, this package imports its layers and models, so that Keras can find
them by name when it loads a saved model. Otherwise `rt_keras.layers`, `rt_keras.models`, ... are
imported on first use, so that `rt-keras --help` is fast. In that case, import `rt_keras.models`, or
`rt_keras.convert` for a model that it has imported, before Keras loads a model.

>>> import rt_keras
>>> rt_keras.layers.RoutingHeads.__name__
'RoutingHeads'
>>> rt_keras.adapt is rt_keras.models.adapt
True
"""

import importlib
import pkgutil
import sys

__version__ = "1.0.0"

# Functions of this package, and the modules that define them.
_FUNCTIONS = {name: "rt_keras.models" for name in ("adapt", "restore")}
_PARTS = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]


def __getattr__(name):
    if name in _PARTS:
        return importlib.import_module(f"rt_keras.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'rt_keras' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_PARTS, *_FUNCTIONS])


if "keras" in sys.modules:
    # With the models, and with the heads of imported ones.
    importlib.import_module("rt_keras.convert")
