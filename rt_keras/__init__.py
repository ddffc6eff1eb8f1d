"""Routing Transformers in Keras.

`rt_keras.layers`, `rt_keras.models`, ... and the names in them are imported on first use, so that
`import rt_keras` takes no time. Keras can load any saved model if it is imported before this
package, or once `rt_keras.layers` or anything built on it is used: all classes of this package are
imported the first time that Keras looks for one.

>>> import rt_keras
>>> rt_keras.layers.RoutingHeads.__name__
'RoutingHeads'
>>> rt_keras.adapt is rt_keras.models.adapt
True
"""

import importlib
import sys

from rt_keras.first_use import names_on_first_use

__version__ = "1.0.0"

_MODULES = {"adapt": "models.adapted.adapt", "restore": "models.adapted.adapt"}

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)


if "keras" in sys.modules:
    # Keras then finds the classes of this package.
    importlib.import_module("rt_keras.layers")
