"""Importers of checkpoints that others trained."""

from rt_keras.convert.t2t import load_t2t_checkpoint

__all__ = ["load_t2t_checkpoint"]
