"""Callbacks: what moves the centroids, and watches a run."""

from rt_keras.callbacks.centroid_ema import CentroidEMA

__all__ = ["CentroidEMA"]
