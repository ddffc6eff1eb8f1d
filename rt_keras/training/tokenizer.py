"""The tokenizer of a configuration."""

import importlib

# The packages and classes by their names in a configuration, imported when they are used. All
# except the first take a vocabulary.
TOKENIZERS = {
    "bytes": ("data", "ByteTokenizer"),
    "sentence_piece": ("data", "SentencePieceTokenizer"),
    "word_piece": ("data", "WordPieceTokenizer"),
    "t2t_subwords": ("convert", "T2TSubwordTokenizer"),
    "words": ("data", "WordTokenizer"),
}


def make_tokenizer(config):
    """Creates the tokenizer of a `TokenizerConfig`.

    Args:
        config: a `TokenizerConfig`.

    Returns:
        A tokenizer of `rt_keras.data` or `rt_keras.convert`.

    >>> from rt_keras.training.config import TokenizerConfig
    >>> make_tokenizer(TokenizerConfig(name="bytes")).vocabulary_size()
    258
    """
    package, name = TOKENIZERS[config.name]
    tokenizer = getattr(importlib.import_module(f"rt_keras.{package}"), name)
    return tokenizer() if config.name == "bytes" else tokenizer(config.vocabulary)
