"""Routing Transformers in Keras.

`rt_keras.layers`, `rt_keras.models`, ... and the names in them are imported on first use, so that
`import rt_keras` takes no time. Keras can load any saved model once it and this package are
imported, in either order: the first time that it looks for a class of this package, all of them
are imported.

>>> import rt_keras
>>> rt_keras.layers.RoutingHeads.__name__
'RoutingHeads'
>>> rt_keras.adapt is rt_keras.models.adapt
True
"""

import importlib
import sys

from rt_keras.first_use import AfterImport, names_on_first_use
from rt_keras.keras_internals import before_first_lookup

__version__ = "1.0.0"

_MODULES = {"adapt": "models.adapted.adapt", "restore": "models.adapted.adapt"}

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)


def _import_classes():
    """Imports all classes that Keras saves by name."""
    importlib.import_module("rt_keras.training.schedule")
    # Of the data, only tokenizers are saved; data sets need an extra.
    endings = {"layers": "", "layers.key_sets": "", "models": "", "convert": ""}
    for name, ending in {**endings, "data": "Tokenizer"}.items():
        package = importlib.import_module(f"rt_keras.{name}")
        for public in package.__all__:
            if public.endswith(ending):
                getattr(package, public)


def _help_keras():
    """Lets Keras find the classes of this package, once Keras is imported."""
    before_first_lookup("rt_keras", _import_classes)


if "keras" in sys.modules:
    _help_keras()
else:
    sys.meta_path.insert(0, AfterImport("keras", _help_keras))
