"""Callbacks that update centroids and monitor a run."""

from rt_keras.callbacks.centroid_ema import CentroidEMA
from rt_keras.callbacks.watch_heads import WatchHeads

__all__ = ["CentroidEMA", "WatchHeads"]
