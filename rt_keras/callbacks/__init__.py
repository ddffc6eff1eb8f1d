"""Callbacks that update centroids and monitor a run."""

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "CentroidEMA": "centroid_ema",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
