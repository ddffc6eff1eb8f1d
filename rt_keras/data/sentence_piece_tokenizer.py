"""Tokenizer of SentencePiece models, and their training."""

import io
import tempfile
from pathlib import Path

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data import extras
from rt_keras.data.tokenizer import TextTokenizer

# Number of lines that are read at most, chosen at random.
LINES = 1_000_000


@keras.saving.register_keras_serializable(package="rt_keras")
class SentencePieceTokenizer(TextTokenizer, keras_hub.tokenizers.SentencePieceTokenizer):
    """KerasHub's SentencePiece tokenizer with the special tokens of the models here.

    The padding and end tokens default to those of the SentencePiece trainer. The trainer adds no
    padding token by default; pass it `pad_id=3`, for example. For a model without padding, name a
    piece that never occurs in text.

    Args:
        proto: bytes, the serialized model, or string, the path of its file. None if assets are
            loaded later. Defaults to None.
        pad_token: string, the piece used as padding. Defaults to "<pad>".
        end_token: string, the piece that ends a text and starts generation. Defaults to "</s>".
        **kwargs: other keyword arguments of `keras_hub.tokenizers.SentencePieceTokenizer`.

    Call arguments:
        inputs: a string, or a batch of strings `[batch]`, UTF-8.

    Returns:
        Tokens `[length]` for one string, ragged `[batch, (length)]` or lists for a batch, or dense
        `[batch, sequence_length]`, as from KerasHub's tokenizer.

    Raises:
        ValueError: if `proto` is not a SentencePiece model or lacks one of the two pieces.

    Source: Kudo and Richardson 2018, SentencePiece.

    Example:

    >>> import io, sentencepiece
    >>> model = io.BytesIO()
    >>> sentencepiece.SentencePieceTrainer.train(
    ...     sentence_iterator=iter(["a rose is a rose"] * 9), model_writer=model, vocab_size=11,
    ...     pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    >>> tokenizer = SentencePieceTokenizer(model.getvalue())
    >>> tokenizer.pad_token_id, tokenizer.end_token_id
    (0, 1)
    >>> tokenizer.detokenize(tokenizer("is a rose"))
    'is a rose'
    """

    config_names = ("pad_token", "end_token")

    def __init__(self, proto=None, pad_token="<pad>", end_token="</s>", **kwargs):
        self._add_pad_and_end(pad_token, end_token)
        super().__init__(proto=proto, **kwargs)

    def set_proto(self, proto):
        """Sets the model: serialized bytes, or the path of its file."""
        try:
            super().set_proto(proto)
        except (tf.errors.OpError, RuntimeError) as error:
            given = f"{len(proto):,} bytes" if isinstance(proto, bytes) else repr(proto)
            raise ValueError(
                f"proto must be a SentencePiece model, or the path of one. Received: {given}, "
                "which is damaged or not a SentencePiece model"
            ) from error


def compute_sentence_piece_proto(texts, vocabulary_size, characters=False):
    """Trains a SentencePiece vocabulary of the unigram model.

    Line breaks and spaces are tokens like others, and characters without a token become their
    bytes, so that `detokenize` gives back a text as it was, except for U+2581, SentencePiece's own
    sign for a space, which becomes a space. Texts are split into lines, which are the sentences of
    the training.

    Args:
        texts: iterable of bytes, UTF-8.
        vocabulary_size: int, maximum number of tokens; 256 of them are bytes, and 4 are special.
        characters: bool, whether each token is a single character. Defaults to False.

    Returns:
        bytes, the proto of a `SentencePieceTokenizer`.

    Raises:
        ValueError: if there is no text, or the size is too small for the characters of the texts.

    Source: Kudo 2018, Subword Regularization, section 3.2, as SentencePiece implements it.

    >>> proto = compute_sentence_piece_proto([b"a rose is\\na rose"] * 9, vocabulary_size=280)
    >>> tokenizer = SentencePieceTokenizer(proto)
    >>> tokenizer.detokenize(tokenizer("is  a rose\\nor café?"))
    'is  a rose\\nor café?'
    """
    with extras.needed("train", "Training a vocabulary"):
        import sentencepiece

    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        # Without rules, SentencePiece prints that it has none whenever the vocabulary is loaded.
        # This one replaces its own sign for a space, which comes back as a space anyway.
        rules = Path(folder, "rules.tsv")
        rules.write_text("2581\t20\n")
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(line for text in texts for line in text.splitlines() if line),
                model_writer=model,
                model_type="char" if characters else "unigram",
                vocab_size=vocabulary_size,
                hard_vocab_limit=False,
                normalization_rule_tsv=str(rules),
                remove_extra_whitespaces=False,
                byte_fallback=True,
                user_defined_symbols=["\n"],
                input_sentence_size=LINES,
                max_sentence_length=2**30,
                pad_id=0,
                eos_id=1,
                unk_id=2,
                bos_id=-1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(
                f"vocabulary_size must fit the texts. Received: vocabulary_size={vocabulary_size}; "
                f"{str(error).rpartition('] ')[2].strip() or 'there is no text'}"
            ) from error
    return model.getvalue()
