"""Tokenizers, dataset builders, and input pipelines for text, images and speech.

The names below are imported on first use: KerasHub and TensorFlow Datasets take seconds to import,
and most programs need only one of them or neither. Data sets need the extra `train`.
"""

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "ByteTokenizer": "byte_tokenizer",
    "IdxImages": "idx_images",
    "Kilt": "question_folder",
    "PairsFolder": "pairs_folder",
    "ParallelDocuments": "pairs_folder",
    "PythonSource": "text_folder",
    "QuestionFolder": "question_folder",
    "SentencePieceTokenizer": "sentence_piece_tokenizer",
    "SpeechFolder": "speech_folder",
    "TextFile": "text_folder",
    "TextFolder": "text_folder",
    "WordPieceTokenizer": "word_piece_tokenizer",
    "WordTokenizer": "word_tokenizer",
    "check_packed": "shards",
    "compute_sentence_piece_proto": "sentence_piece_tokenizer",
    "count_text": "documents",
    "document_chunks": "chunks",
    "evaluation_dataset": "packing",
    "evaluation_images": "images",
    "evaluation_pairs": "pairs",
    "evaluation_speech": "speech",
    "load_documents": "documents",
    "load_images": "images",
    "load_pairs": "pairs",
    "load_question_answers": "questions",
    "load_speech": "speech",
    "pack_documents": "packing",
    "pack_examples": "examples",
    "read_documents": "document_source",
    "separate_documents": "packing",
    "sliding_dataset": "chunks",
    "stateful_dataset": "chunks",
    "training_dataset": "packing",
    "training_images": "images",
    "training_pairs": "pairs",
    "training_speech": "speech",
    "write_word_vocabulary": "word_tokenizer",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
