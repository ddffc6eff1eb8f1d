"""Retrieval: documents cut into passages, an index of their embeddings, and answers from them."""

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "ExactIndex": "exact_index",
    "Index": "index_folder",
    "build_index": "index_folder",
    "read_index": "index_folder",
    "retrieve": "question_passages",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
