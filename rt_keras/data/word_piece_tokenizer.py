"""Tokenizer of words and parts of words from a list."""

import keras
import keras_hub

from rt_keras.data.file_reading import read_utf8
from rt_keras.data.tokenizer import TextTokenizer


@keras.saving.register_keras_serializable(package="rt_keras")
class WordPieceTokenizer(TextTokenizer, keras_hub.tokenizers.WordPieceTokenizer):
    """KerasHub's WordPiece tokenizer with the special tokens of the models here.

    The padding and end tokens default to those of BERT's vocabularies. White space is not kept:
    detokenizing joins words with single spaces.

    Args:
        vocabulary: list of strings, or the path of a UTF-8 file with one token per line. None if
            assets are loaded later. Defaults to None.
        pad_token: string, the token used as padding. Defaults to "[PAD]".
        end_token: string, the token that ends a text and starts generation. Defaults to "[SEP]".
        **kwargs: other keyword arguments of `keras_hub.tokenizers.WordPieceTokenizer`.

    Call arguments:
        inputs: a string, or a batch of strings `[batch]`, UTF-8.

    Returns:
        Tokens `[length]` for one string, ragged `[batch, (length)]` or lists for a batch, or dense
        `[batch, sequence_length]`, as from KerasHub's tokenizer.

    Raises:
        ValueError: if the file is not UTF-8, or if the vocabulary lacks one of the two tokens or
            the token for unknown words.

    Source: Song et al. 2020, Fast WordPiece Tokenization.

    Example:

    >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[SEP]", "a", "rose", "##s"])
    >>> tokenizer("a roses").tolist()
    [3, 4, 5]
    >>> tokenizer.pad_token_id, tokenizer.end_token_id
    (0, 2)
    """

    config_names = ("pad_token", "end_token")

    def __init__(self, vocabulary=None, pad_token="[PAD]", end_token="[SEP]", **kwargs):
        self._add_pad_and_end(pad_token, end_token)
        super().__init__(vocabulary=vocabulary, **kwargs)

    def set_vocabulary(self, vocabulary):
        """Sets the vocabulary: a list of tokens, or the path of a file."""
        if isinstance(vocabulary, str):
            read_utf8(vocabulary)
        super().set_vocabulary(vocabulary)
