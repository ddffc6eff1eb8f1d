"""Text as words and parts of words from a list."""

import keras
import keras_hub

from rt_keras.data.tokenizer import TextTokenizer, read_utf8


@keras.saving.register_keras_serializable(package="rt_keras")
class WordPieceTokenizer(TextTokenizer, keras_hub.tokenizers.WordPieceTokenizer):
    """KerasHub's WordPiece tokenizer, with the special tokens that our models ask for.

    Padding and end of text are found by name; the defaults are those of BERT's vocabularies. White
    space is not kept: detokenizing joins words by single spaces.

    Args:
        vocabulary: a list of tokens, or the path of a file with one a line.
        pad_token: the token used as padding.
        end_token: the token that ends a text, and starts generation.
        **kwargs: those of `keras_hub.tokenizers.WordPieceTokenizer`.

    Raises:
        ValueError: if the vocabulary lacks one of the two tokens, or the one for unknown words.

    Source: Song et al., "Fast WordPiece Tokenization", 2020.

    Example:

    >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[SEP]", "a", "rose", "##s"])
    >>> tokenizer("a roses").tolist()
    [3, 4, 5]
    >>> tokenizer.pad_token_id, tokenizer.end_token_id
    (0, 2)
    """

    def __init__(self, vocabulary=None, pad_token="[PAD]", end_token="[SEP]", **kwargs):
        self._add_pad_and_end(pad_token, end_token)
        super().__init__(vocabulary=vocabulary, **kwargs)

    def set_vocabulary(self, vocabulary):
        """Takes the tokens of a file, given by its path, or of a list."""
        if isinstance(vocabulary, str):
            read_utf8(vocabulary)
        super().set_vocabulary(vocabulary)

    def get_config(self):
        return {
            **super().get_config(),
            "pad_token": self.pad_token,
            "end_token": self.end_token,
        }
