"""Callbacks that update centroids and monitor a run."""

from rt_keras.callbacks.centroid_ema import CentroidEMA

__all__ = ["CentroidEMA"]
