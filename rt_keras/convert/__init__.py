"""Importers of published checkpoints."""

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "T2TSubwordTokenizer": "t2t.subword_tokenizer",
    "convert_t2t_checkpoint": "t2t.checkpoint",
    "load_t2t_checkpoint": "t2t.checkpoint",
    "new_t2t_model": "t2t.model",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
