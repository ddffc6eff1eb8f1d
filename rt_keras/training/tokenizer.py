"""The tokenizer of a configuration."""

from rt_keras import data

# The classes in `rt_keras.data` by their names in a configuration. All except the first take a
# vocabulary.
TOKENIZERS = {
    "bytes": "ByteTokenizer",
    "sentence_piece": "SentencePieceTokenizer",
    "word_piece": "WordPieceTokenizer",
    "t2t_subwords": "T2TSubwordTokenizer",
    "words": "WordTokenizer",
}


def make_tokenizer(config):
    """Creates the tokenizer of a `TokenizerConfig`.

    Args:
        config: a `TokenizerConfig`.

    Returns:
        A tokenizer of `rt_keras.data`.

    >>> from rt_keras.training.config import TokenizerConfig
    >>> make_tokenizer(TokenizerConfig(name="bytes")).vocabulary_size()
    258
    """
    tokenizer = getattr(data, TOKENIZERS[config.name])
    return tokenizer() if config.name == "bytes" else tokenizer(config.vocabulary)
