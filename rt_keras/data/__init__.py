"""Data: tokenizers, dataset builders and the pipelines that feed a model text or images.

The names below are imported when they are first used, because KerasHub and TensorFlow Datasets
cost seconds to import and most programs need one of them or neither.
"""

import importlib

_MODULES = {
    "ByteTokenizer": "byte_tokenizer",
    "SentencePieceTokenizer": "sentence_piece_tokenizer",
    "WordPieceTokenizer": "word_piece_tokenizer",
    "T2TSubwordTokenizer": "t2t_subword_tokenizer",
    "WordTokenizer": "word_tokenizer",
    "write_word_vocabulary": "word_tokenizer",
    "TextFolder": "text_folder",
    "PythonSource": "python_source",
    "load_documents": "documents",
    "count_text": "documents",
    "training_dataset": "packing",
    "evaluation_dataset": "packing",
    "load_images": "images",
    "training_images": "images",
    "evaluation_images": "images",
    "PairsFolder": "pairs_folder",
    "load_pairs": "pairs",
    "training_pairs": "pairs",
    "evaluation_pairs": "pairs",
}

__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
