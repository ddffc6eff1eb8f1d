"""KerasHub's models with the attention of this package and their own weights."""

from rt_keras.models.adapted.adapt import adapt, restore

__all__ = ["adapt", "restore"]
