"""KerasHub's models with the attention of this package and their own weights."""

from rt_keras.models.adapted.adapt import adapt, restore
from rt_keras.models.adapted.distill import distill
from rt_keras.models.adapted.fit_centroids import fit_centroids

__all__ = ["adapt", "distill", "fit_centroids", "restore"]
