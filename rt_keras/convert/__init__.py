"""Importers of published checkpoints."""

from rt_keras.convert.t2t.checkpoint import convert_t2t_checkpoint, load_t2t_checkpoint
from rt_keras.convert.t2t.model import new_t2t_model
from rt_keras.convert.t2t.subword_tokenizer import T2TSubwordTokenizer

__all__ = ["T2TSubwordTokenizer", "convert_t2t_checkpoint", "load_t2t_checkpoint", "new_t2t_model"]
