"""KerasHub's models with the attention of this package and their own weights."""
