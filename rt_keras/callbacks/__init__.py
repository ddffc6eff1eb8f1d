"""Callbacks that move centroids and watch a run."""

from rt_keras.callbacks.centroid_ema import CentroidEMA

__all__ = ["CentroidEMA"]
