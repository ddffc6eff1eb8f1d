"""Text as pieces that a SentencePiece model learned."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.tokenizer import TextTokenizer


@keras.saving.register_keras_serializable(package="rt_keras")
class SentencePieceTokenizer(TextTokenizer, keras_hub.tokenizers.SentencePieceTokenizer):
    """KerasHub's SentencePiece tokenizer, with the special tokens that our models ask for.

    Padding and end of text are found by name; the defaults are the names that the SentencePiece
    trainer gives them. The trainer leaves padding out unless told (`pad_id=3`, say); of a model
    without it, another piece that never occurs in text can be named.

    Args:
        proto: the serialized model as bytes, or the path of its file.
        pad_token: the piece used as padding.
        end_token: the piece that ends a text, and starts generation.
        **kwargs: those of `keras_hub.tokenizers.SentencePieceTokenizer`.

    Raises:
        ValueError: if the model lacks one of the two pieces.

    Source: Kudo and Richardson, "SentencePiece", 2018.

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

    def __init__(self, proto=None, pad_token="<pad>", end_token="</s>", **kwargs):
        self._add_pad_and_end(pad_token, end_token)
        super().__init__(proto=proto, **kwargs)

    def set_proto(self, proto):
        """Takes a serialized model: bytes, or the path of its file."""
        try:
            super().set_proto(proto)
        except (tf.errors.OpError, RuntimeError) as error:
            given = f"{len(proto):,} bytes" if isinstance(proto, bytes) else repr(proto)
            raise ValueError(
                f"proto must be a SentencePiece model, or the path of one. Received: {given}, "
                "which is broken or something else"
            ) from error

    def get_config(self):
        return {
            **super().get_config(),
            "pad_token": self.pad_token,
            "end_token": self.end_token,
        }
