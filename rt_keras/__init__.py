"""Routing Transformers in Keras.

`rt_keras.ops`, `rt_keras.layers`, `rt_keras.models`, ... are imported when first used, so that
importing the package, and with it `rt-keras --help`, costs nothing.

>>> import rt_keras
>>> rt_keras.layers.RoutingHeads.__name__
'RoutingHeads'
"""

import importlib

__version__ = "0.1.0"

_PARTS = (
    "benchmarks",
    "callbacks",
    "data",
    "layers",
    "models",
    "ops",
    "serving",
    "training",
)


def __getattr__(name):
    if name in _PARTS:
        return importlib.import_module(f"rt_keras.{name}")
    raise AttributeError(f"module 'rt_keras' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_PARTS])
