"""The tokenizer of a configuration."""

from rt_keras import convert, data

# The classes by their names in a configuration, with the package of each, which imports it when it
# is used. All except the first take a vocabulary.
TOKENIZERS = {
    "bytes": (data, "ByteTokenizer"),
    "sentence_piece": (data, "SentencePieceTokenizer"),
    "word_piece": (data, "WordPieceTokenizer"),
    "t2t_subwords": (convert, "T2TSubwordTokenizer"),
    "words": (data, "WordTokenizer"),
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
    tokenizer = getattr(*TOKENIZERS[config.name])
    return tokenizer() if config.name == "bytes" else tokenizer(config.vocabulary)
