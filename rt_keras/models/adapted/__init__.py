"""KerasHub's models with the attention of this package, their weights kept."""

from rt_keras.models.adapted.adapt import adapt, restore

__all__ = ["adapt", "restore"]
