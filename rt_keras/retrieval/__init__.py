"""Retrieval: documents cut into passages, an index of their embeddings, and answers from them."""

from rt_keras.retrieval.exact_index import ExactIndex
from rt_keras.retrieval.index_folder import Index, build_index, read_index
from rt_keras.retrieval.question_passages import retrieve

__all__ = ["ExactIndex", "Index", "build_index", "read_index", "retrieve"]
