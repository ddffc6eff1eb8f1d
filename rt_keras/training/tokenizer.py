"""The tokenizer that a configuration describes."""

from rt_keras import data

# The classes of `rt_keras.data` by their names in a configuration. All but the first take a
# vocabulary.
TOKENIZERS = {
    "bytes": "ByteTokenizer",
    "sentence_piece": "SentencePieceTokenizer",
    "word_piece": "WordPieceTokenizer",
    "t2t_subwords": "T2TSubwordTokenizer",
    "words": "WordTokenizer",
}


def make_tokenizer(config):
    """The tokenizer of a `TokenizerConfig`.

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
