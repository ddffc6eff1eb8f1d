"""Preprocessor of encoder-decoders, from pairs of strings to token ids and back."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer
from rt_keras.models.causal_lm.causal_lm_preprocessor import strings_of_tokens
from rt_keras.models.compatible_parts import check_tokenizer
from rt_keras.models.generation import check_texts, no_tokens
from rt_keras.models.seq_2_seq.seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqLMPreprocessor(keras_hub.models.Seq2SeqLMPreprocessor):
    """KerasHub's preprocessor of encoder-decoders, for any tokenizer of `rt_keras.data`.

    Both sequences consist of end of text, the tokens of a text, and end of text. They are truncated
    or padded to their lengths.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        encoder_sequence_length: int, length of the encoder's sequences. Defaults to 1024.
        decoder_sequence_length: int, length of the decoder's sequences. Defaults to 1024.
        **kwargs: keyword arguments of `keras_hub.models.Seq2SeqLMPreprocessor`, such as `name`.

    Call arguments:
        x: dictionary of "encoder_text" and "decoder_text", strings `[batch]`.

    Returns:
        Tuple `(x, y, sample_weight)`: `x` contains the inputs of `RoutingTransformerSeq2SeqLM`, `y`
        the next token of each position of the decoder, `[batch, decoder_sequence_length]`, and
        `sample_weight` is False where that token is padding.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
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
    tokenizer_cls = TextTokenizer

    def __init__(
        self, tokenizer, encoder_sequence_length=1024, decoder_sequence_length=1024, **kwargs
    ):
        check_tokenizer(tokenizer)
        check_at_least_one(
            encoder_sequence_length=encoder_sequence_length,
            decoder_sequence_length=decoder_sequence_length,
        )
        super().__init__(
            tokenizer,
            encoder_sequence_length=encoder_sequence_length,
            decoder_sequence_length=decoder_sequence_length,
            **kwargs,
        )

    def get_config(self):
        # KerasHub's returns only the arguments that all preprocessors share.
        return {
            **super().get_config(),
            "encoder_sequence_length": self.encoder_sequence_length,
            "decoder_sequence_length": self.decoder_sequence_length,
        }

    def generate_preprocess(self, x, **lengths):
        """Converts texts to the inputs of generation.

        Args:
            x: a string, strings `[batch]`, or a dictionary of "encoder_text" and "decoder_text".
            **lengths: `encoder_sequence_length` and `decoder_sequence_length`, ints, by default
                those of the preprocessor. `sequence_length` is an alias of the latter.

        Returns:
            Dictionary of "encoder_token_ids" and "encoder_padding_mask",
            `[batch, encoder_sequence_length]`, and "decoder_token_ids" and
            "decoder_padding_mask", `[batch, decoder_sequence_length]`.

        Raises:
            ValueError: if a length is less than 1, or if a text is too long or is not the UTF-8
                that the tokenizer needs.
        """
        check_at_least_one(**lengths)
        texts = x if isinstance(x, dict) else {"encoder_text": x}
        texts = {name: list(y) if isinstance(y, tuple) else y for name, y in texts.items()}
        decoder_length = lengths.get("decoder_sequence_length") or lengths.get("sequence_length")
        rooms = {
            "encoder_text": lengths.get("encoder_sequence_length") or self.encoder_sequence_length,
            "decoder_text": decoder_length or self.decoder_sequence_length,
        }
        if all(isinstance(text, (list, tuple)) and not text for text in texts.values()):
            encoder = no_tokens(rooms["encoder_text"], "encoder_")
            return encoder | no_tokens(rooms["decoder_text"], "decoder_")
        if isinstance(x, dict):
            shapes = [tf.convert_to_tensor(texts.get(name, [])).shape for name in rooms]
            if not shapes[0].is_compatible_with(shapes[1]):
                needed = "encoder_text and decoder_text must have one shape"
                raise ValueError(f"{needed}. Received: {shapes[0]} and {shapes[1]}")
        for name, text in texts.items():
            # End of text precedes each text, and also follows that of the encoder.
            added = 2 if name == "encoder_text" else 1
            check_texts(name, text, self.tokenizer, rooms[name], added)
        x = texts if isinstance(x, dict) else texts["encoder_text"]
        return super().generate_preprocess(x, **lengths)

    def generate_postprocess(self, x):
        """Converts tokens to strings, without padding and end-of-text tokens.

        Args:
            x: dictionary of "decoder_token_ids" and "decoder_padding_mask", from generation.

        Returns:
            A list of strings, or a string for a single sequence. Invalid UTF-8 becomes U+FFFD.
            Inside a TensorFlow function, a string tensor of the exact bytes.
        """
        return strings_of_tokens(self.tokenizer, x["decoder_token_ids"], x["decoder_padding_mask"])
