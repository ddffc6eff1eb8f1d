"""Importers of published checkpoints."""

from rt_keras.convert.t2t import convert_t2t_checkpoint, load_t2t_checkpoint

__all__ = ["convert_t2t_checkpoint", "load_t2t_checkpoint"]
