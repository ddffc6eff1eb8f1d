"""Preprocessor of speech recognizers, from sounds and texts to features and labels."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer, batch_of_tokens
from rt_keras.data.wav import decode_wavs
from rt_keras.models.compatible_parts import check_tokenizer
from rt_keras.models.generation import as_tensor
from rt_keras.models.speech.audio_converter import (
    STRIDE,
    RoutingTransformerAudioConverter,
)
from rt_keras.models.speech.speech_backbone import RoutingTransformerSpeechBackbone
from rt_keras.models.speech.speech_embedding import SUBSAMPLING


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpeechRecognizerPreprocessor(keras_hub.models.Preprocessor):
    """Converts sounds to features, and texts to labels.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, whose token 0 is padding, which is the blank.
        audio_converter: a `RoutingTransformerAudioConverter`.
        sequence_length: int, number of positions of the model, of 40 ms each, to which sounds are
            truncated or padded. Defaults to None, for the length of the longest sound.
        label_length: int, number of tokens, to which labels are truncated or padded. Defaults to
            None, for that of the longest text.
        **kwargs: other keyword arguments of `keras_hub.models.Preprocessor`.

    Call arguments:
        x: strings `[batch]`, the bytes of WAV files of any sampling rate; or float
            `[batch, samples]`, sounds of 16 kHz.
        y: strings `[batch]`, the texts. Defaults to None.
        sample_weight: weights, passed through. Defaults to None.

    Returns:
        A dictionary of "features", float32 `[batch, frames, num_mel_bins]`, and "padding_mask",
        bool `[batch, frames]`; with texts, a tuple of this dictionary and the labels, int32
        `[batch, tokens]`.

    Attributes:
        position_samples: int, number of samples in a position, 640.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if a length is less than 1, or the padding of the tokenizer is not token 0.

    >>> from rt_keras.data import ByteTokenizer
    >>> make = RoutingTransformerSpeechRecognizerPreprocessor
    >>> preprocessor = make(ByteTokenizer(), RoutingTransformerAudioConverter(40))
    >>> x, y = preprocessor(tf.zeros([1, 6400]), ["no"])
    >>> x["features"].shape, y.numpy().tolist()
    (TensorShape([1, 40, 40]), [[112, 113]])
    """

    backbone_cls = RoutingTransformerSpeechBackbone
    tokenizer_cls = TextTokenizer
    audio_converter_cls = RoutingTransformerAudioConverter
    position_samples = STRIDE * SUBSAMPLING

    def __init__(
        self, tokenizer, audio_converter, sequence_length=None, label_length=None, **kwargs
    ):
        super().__init__(**kwargs)
        check_tokenizer(tokenizer)
        check_at_least_one(sequence_length=sequence_length, label_length=label_length)
        if tokenizer.is_loaded and tokenizer.pad_token_id != 0:
            raise ValueError(
                "tokenizer must have padding as token 0, which stands for the blank. Received: a "
                f"{type(tokenizer).__name__} with padding {tokenizer.pad_token_id}"
            )
        self.tokenizer, self.audio_converter = tokenizer, audio_converter
        self.sequence_length, self.label_length = sequence_length, label_length

    def get_config(self):
        lengths = {"sequence_length": self.sequence_length, "label_length": self.label_length}
        return {**super().get_config(), **lengths}

    def call(self, x, y=None, sample_weight=None):
        samples, counts = self.samples(x)
        features, mask = self.audio_converter(samples, counts=counts)
        inputs = {"features": features, "padding_mask": mask}
        labels = None if y is None else self.labels(y)
        return keras.utils.pack_x_y_sample_weight(inputs, labels, sample_weight)

    def samples(self, x, truncate=True):
        """Decodes sounds, and truncates or pads them to `sequence_length`.

        Args:
            x: see `call`.
            truncate: bool, whether to apply `sequence_length`. Defaults to True.

        Returns:
            float32 `[batch, samples]`, and int32 `[batch]`, the number of samples of each sound.

        Raises:
            ValueError: if `x` has another type or shape.
        """
        x = as_tensor("x", x)
        strings = x.dtype == tf.string
        shape = [None] if strings else [None, None]
        if not (strings or x.dtype.is_floating) or not x.shape.is_compatible_with(shape):
            raise ValueError(
                "x must be strings [batch], the bytes of WAV files, or floats [batch, samples], "
                f"from -1 to 1. Received: {x.dtype.name} of the shape {x.shape}"
            )
        if strings:
            samples, counts = decode_wavs(x)  # [batch] -> [batch, samples] and [batch]
        else:
            samples = tf.cast(x, tf.float32)
            counts = tf.fill(tf.shape(samples)[:1], tf.shape(samples)[1])
        if truncate and self.sequence_length is not None:
            samples = fit_to(samples, self.sequence_length * self.position_samples)
            counts = tf.minimum(counts, self.sequence_length * self.position_samples)
        return samples, counts

    def labels(self, y):
        """Converts texts to labels.

        Args:
            y: strings `[batch]`.

        Returns:
            int32 `[batch, tokens]`.
        """
        tokens = batch_of_tokens(self.tokenizer(y))[0].to_tensor()
        return tokens if self.label_length is None else fit_to(tokens, self.label_length)


def fit_to(values, length):
    """Truncates or pads `[batch, any]` to `[batch, length]`, with zeros at the end.

    >>> fit_to(tf.ones([1, 2], tf.int32), 3).numpy().tolist()
    [[1, 1, 0]]
    """
    values = values[:, :length]
    values = tf.pad(values, [[0, 0], [0, length - tf.shape(values)[1]]])
    return tf.ensure_shape(values, [None, length])
