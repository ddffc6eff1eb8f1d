"""Tokenizer of SentencePiece models."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.tokenizer import TextTokenizer


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
