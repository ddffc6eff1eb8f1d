"""Pairs of strings to what an encoder-decoder trains on and generates from, and back."""

import keras
import keras_hub

from rt_keras.models.generation import check_texts
from rt_keras.models.routing_transformer_causal_lm_preprocessor import (
    check_tokenizer,
    strings_of_tokens,
)
from rt_keras.models.routing_transformer_seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqLMPreprocessor(keras_hub.models.Seq2SeqLMPreprocessor):
    """KerasHub's preprocessor of encoder-decoders, for any tokenizer of `rt_keras.data`.

    Both texts become: end of text, the tokens, end of text; cut or padded to their length.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`.
        encoder_sequence_length: int, tokens that the encoder sees.
        decoder_sequence_length: int, tokens that the decoder sees.
        **kwargs: those of `keras_hub.models.Seq2SeqLMPreprocessor`.

    Call arguments:
        x: dictionary of "encoder_text" and "decoder_text", strings `[batch]`.

    Returns:
        `(x, y, sample_weight)`: the inputs of `RoutingTransformerSeq2SeqLM`, the token after each
        of the decoder's, and False where that is padding.

    Raises:
        TypeError: if `tokenizer` is of another class.
        ValueError: if a length is less than 1.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 4, 3)
    >>> x, y, _ = preprocessor({"encoder_text": ["ab"], "decoder_text": ["c"]})
    >>> x["encoder_token_ids"].numpy().tolist(), x["decoder_token_ids"].numpy().tolist()
    ([[1, 99, 100, 1]], [[1, 101, 1]])
    >>> y.numpy().tolist()
    [[101, 1, 0]]
    """

    backbone_cls = RoutingTransformerSeq2SeqBackbone

    def __init__(
        self, tokenizer, encoder_sequence_length=1024, decoder_sequence_length=1024, **kwargs
    ):
        check_tokenizer(tokenizer)
        lengths = {
            "encoder_sequence_length": encoder_sequence_length,
            "decoder_sequence_length": decoder_sequence_length,
        }
        for name, length in lengths.items():
            if length < 1:
                raise ValueError(f"{name}={length}: it must be at least 1")
        super().__init__(tokenizer, **lengths, **kwargs)

    def get_config(self):
        # KerasHub's has only what all preprocessors share.
        return {
            **super().get_config(),
            "encoder_sequence_length": self.encoder_sequence_length,
            "decoder_sequence_length": self.decoder_sequence_length,
        }

    def generate_preprocess(self, x, **lengths):
        """Texts to what `generate` starts from; lengths as in KerasHub's.

        Raises:
            ValueError: if a text makes more tokens than there is room for, or is not UTF-8 and has
                to be.
        """
        texts = x if isinstance(x, dict) else {"encoder_text": x}
        decoder_length = lengths.get("decoder_sequence_length") or lengths.get("sequence_length")
        rooms = {
            "encoder_text": lengths.get("encoder_sequence_length") or self.encoder_sequence_length,
            "decoder_text": decoder_length or self.decoder_sequence_length,
        }
        for name, text in texts.items():
            # An end of text before and, where it is read, behind.
            added = 2 if name == "encoder_text" else 1
            check_texts(name, text, self.tokenizer, rooms[name], added)
        return super().generate_preprocess(x, **lengths)

    def generate_postprocess(self, x):
        """Tokens back to strings; see `RoutingTransformerCausalLMPreprocessor`."""
        return strings_of_tokens(self.tokenizer, x["decoder_token_ids"], x["decoder_padding_mask"])
