"""Data: tokenizers, dataset builders, and the pipelines that feed text or images to a model.

The names below are imported on first use: KerasHub and TensorFlow Datasets take seconds to import,
and most programs need only one of them or neither. Data sets need the extra `train`.
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
    "TextFile": "text_file",
    "PythonSource": "python_source",
    "load_documents": "documents",
    "count_text": "documents",
    "pack_documents": "packing",
    "training_dataset": "packing",
    "evaluation_dataset": "packing",
    "carried_dataset": "pieces",
    "document_pieces": "pieces",
    "sliding_dataset": "pieces",
    "masked_batches": "masking",
    "pack_examples": "examples",
    "check_packed": "shards",
    "load_images": "images",
    "training_images": "images",
    "evaluation_images": "images",
    "CsvFolder": "csv_folder",
    "load_labeled_texts": "labeled_texts",
    "training_labeled_texts": "labeled_texts",
    "evaluation_labeled_texts": "labeled_texts",
    "load_questions": "questions",
    "training_questions": "questions",
    "evaluation_questions": "questions",
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
