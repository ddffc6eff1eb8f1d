"""Tokenizers, dataset builders, and input pipelines for text, images and speech.

The names below are imported on first use: KerasHub and TensorFlow Datasets take seconds to import,
and most programs need only one of them or neither. Data sets need the extra `train`.
"""

import importlib

# The public names of each module.
_NAMES = {
    "byte_tokenizer": "ByteTokenizer",
    "sentence_piece_tokenizer": "SentencePieceTokenizer compute_sentence_piece_proto",
    "word_piece_tokenizer": "WordPieceTokenizer",
    "word_tokenizer": "WordTokenizer write_word_vocabulary",
    "text_folder": "TextFolder TextFile PythonSource",
    "documents": "load_documents count_text",
    "packing": "pack_documents training_dataset evaluation_dataset separate_documents",
    "chunks": "stateful_dataset document_chunks sliding_dataset",
    "examples": "pack_examples",
    "shards": "check_packed",
    "idx_images": "IdxImages",
    "images": "load_images training_images evaluation_images",
    "speech_folder": "SpeechFolder",
    "speech": "load_speech training_speech evaluation_speech",
    "question_folder": "QuestionFolder Kilt",
    "questions": "load_question_answers",
    "document_source": "read_documents",
    "pairs_folder": "PairsFolder ParallelDocuments",
    "pairs": "load_pairs training_pairs evaluation_pairs",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
