"""Speech recognizer that writes down a sound as it comes."""

import keras
import numpy as np
import tensorflow as tf

from rt_keras.models.routing_transformer_audio_converter import STRIDE, WINDOW
from rt_keras.models.routing_transformer_speech_embedding import SUBSAMPLING
from rt_keras.models.routing_transformer_speech_recognizer import (
    BLANK,
    RoutingTransformerSpeechRecognizer,
)
from rt_keras.models.routing_transformer_streaming_speech_backbone import (
    RoutingTransformerStreamingSpeechBackbone,
)
from rt_keras.models.streaming import TextChunks

# Positions that are computed at a time, 320 ms.
POSITIONS_AT_ONCE = 8
FRAMES_AT_ONCE = POSITIONS_AT_ONCE * SUBSAMPLING


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerStreamingSpeechRecognizer(RoutingTransformerSpeechRecognizer):
    """A `RoutingTransformerSpeechRecognizer` that can write down a sound as it comes.

    Its backbone is causal, and its features are normalized by fixed numbers.

    Args:
        backbone: a `RoutingTransformerStreamingSpeechBackbone`.
        preprocessor: a `RoutingTransformerSpeechRecognizerPreprocessor` whose audio converter has
            `normalization="fixed"`. Defaults to None, for inputs of features.
        **kwargs: keyword arguments of `keras_hub.models.Task`, such as `name`.

    Call arguments:
        inputs, training: see `RoutingTransformerSpeechRecognizer`.

    Returns:
        Logits, float32 `[batch, frames / 4, vocabulary_size]`.

    Raises:
        TypeError, ValueError: as for `RoutingTransformerSpeechRecognizer`, or if the features
            depend on the whole sound.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras import models
    >>> from rt_keras.layers import LocalHeads
    >>> heads = [LocalHeads(2, block_size=16)]
    >>> backbone = RoutingTransformerStreamingSpeechBackbone(258, 1, 32, 64, heads)
    >>> preprocessor = models.RoutingTransformerSpeechRecognizerPreprocessor(
    ...     ByteTokenizer(), models.RoutingTransformerAudioConverter(normalization="fixed")
    ... )
    >>> model = RoutingTransformerStreamingSpeechRecognizer(backbone, preprocessor)
    >>> sound = np.sin(np.arange(16_000), dtype="float32")
    >>> "".join(model.stream([sound[:9_000], sound[9_000:]])) == model.transcribe(sound[None])[0]
    True
    """

    kind = "streaming_ctc"
    backbone_cls = RoutingTransformerStreamingSpeechBackbone

    @classmethod
    def _check(cls, backbone, preprocessor):
        super()._check(backbone, preprocessor)
        normalization = preprocessor and preprocessor.audio_converter.normalization
        if normalization not in (None, "fixed"):
            raise ValueError(
                'preprocessor must have an audio_converter with normalization="fixed", whose '
                f"features do not depend on what comes later. Received: {normalization!r}"
            )

    def stream(self, chunks, max_seconds=3600):
        """Writes down a sound while it comes.

        The joined texts are those of `transcribe` for the whole sound.

        Args:
            chunks: iterable of float arrays `[samples]`, the parts of a sound of 16 kHz.
            max_seconds: number, the longest sound, for which full heads keep memory. Defaults to
                3600.

        Yields:
            Strings, none of them empty.

        Raises:
            ValueError: if the model has no preprocessor, its heads cannot decode with a cache, the
                sound is longer than `max_seconds`, or a part has integers or several channels.
        """
        if self.preprocessor is None:
            raise ValueError("model must have a preprocessor to transcribe sounds")
        tokens, text = [], TextChunks(self.preprocessor.tokenizer)
        before = BLANK
        for logits in self.stream_logits(chunks, max_seconds):
            for best in logits.argmax(axis=-1).tolist():
                if best not in (before, BLANK):
                    tokens.append(best)
                before = best
            yield from text.new(tokens)
        yield from text.rest()

    def stream_logits(self, chunks, max_seconds=3600):
        """Computes the logits of a sound while it comes; see `stream`.

        Args:
            chunks, max_seconds: see `stream`.

        Yields:
            float32 arrays `[positions, vocabulary_size]`.
        """
        max_length = -(-int(max_seconds * 1000) // 40)
        max_length = -(-max_length // POSITIONS_AT_ONCE) * POSITIONS_AT_ONCE
        step = self.compiled_function(
            "stream",
            lambda: tf.function(self._next_logits, jit_compile=self.jit_generate, autograph=False),
        )
        cache, position = self.backbone.new_cache(1, max_length), 0
        for features, count in self._features(chunks):
            if position + count > max_length:
                raise ValueError(f"a sound must last at most max_seconds={max_seconds}")
            logits, cache = step(features, cache, tf.constant(position))
            yield logits[0, :count].numpy()
            position += count

    def _next_logits(self, features, cache, position):
        hidden, cache = self.backbone.call_with_cache(features, cache, position)
        return self.output_dense(hidden), cache

    def _features(self, chunks):
        """Yields the features of `POSITIONS_AT_ONCE` positions, and the number of real ones."""
        converter, samples = self.preprocessor.audio_converter, np.zeros(0, "float32")
        filter = self.compiled_function(
            "filter", lambda: tf.function(converter.filter, autograph=False)
        )
        needed = (FRAMES_AT_ONCE - 1) * STRIDE + WINDOW
        for chunk in chunks:
            samples = np.concatenate([samples, _one_channel(np.asarray(chunk))])
            while len(samples) >= needed:
                yield converter.shift(filter(samples[None, :needed])), POSITIONS_AT_ONCE
                samples = samples[FRAMES_AT_ONCE * STRIDE :]
        while frames := min(-(-len(samples) // STRIDE), FRAMES_AT_ONCE):
            padded = np.pad(samples[:needed], (0, max(needed - len(samples), 0)))
            features = converter.shift(filter(padded[None]))
            real = tf.range(FRAMES_AT_ONCE) < frames
            features *= tf.cast(real, tf.float32)[:, None]
            yield features, -(-frames // SUBSAMPLING)
            samples = samples[FRAMES_AT_ONCE * STRIDE :]


def _one_channel(chunk):
    """Returns the samples of a part of a sound, float32 `[samples]`."""
    if chunk.dtype.kind != "f" or chunk.size != max(chunk.shape, default=0):
        raise ValueError(
            "chunks must be floats [samples], from -1 to 1, of one channel. Received: "
            f"{chunk.dtype} of the shape {chunk.shape}"
        )
    return chunk.astype("float32").reshape(-1)
