"""The functions of an exported speech recognizer, from sounds to texts."""

import tensorflow as tf

from rt_keras.data.wav import LOWEST_RATE, SAMPLING_RATE, decode_wavs, resample
from rt_keras.models.speech.sound_windows import join_windows, windows_of_sounds
from rt_keras.models.speech.speech_recognizer import BLANK
from rt_keras.serving import checks
from rt_keras.serving.served_tokenizer import served_tokenizer

RATE = tf.constant(SAMPLING_RATE)


def transcribing_functions(model, max_length):
    """Returns the signatures `transcribe` and `transcribe_samples` of a speech recognizer.

    Each row equals the output of `model.transcribe` for its sound alone, independent of the rest of
    the batch, if the heads of the model leave out padding.

    Args:
        model: a `RoutingTransformerSpeechRecognizer` with a preprocessor.
        max_length: int, maximum number of positions of a sound, of 40 ms each.

    Returns:
        A dictionary of two `tf.function`s. `transcribe` takes `sound_bytes`, string `[batch]`, each
        a WAV file of 16 bits and any sampling rate. `transcribe_samples` takes `samples`, float32
        `[batch, samples]`, from -1 to 1, of sounds of one length, and `sampling_rate`, an int32
        scalar in Hz, which defaults to 16,000. Both return a dictionary of `texts`, string
        `[batch]`; `tokens`, string `[batch, tokens]`, padded with empty ones; and `seconds`,
        float32 `[batch, tokens]`, the time of each token from the beginning of the sound, padded
        with 0.

    >>> from rt_keras import data, layers, models
    >>> backbone = models.RoutingTransformerSpeechBackbone(
    ...     258, 1, 8, 16, [layers.LocalHeads(2, block_size=4)], num_mel_bins=8)
    >>> preprocessor = models.RoutingTransformerSpeechRecognizerPreprocessor(
    ...     data.ByteTokenizer(), models.RoutingTransformerAudioConverter(8))
    >>> model = models.RoutingTransformerSpeechRecognizer(backbone, preprocessor)
    >>> transcribe = transcribing_functions(model, max_length=100)["transcribe_samples"]
    >>> sorted(transcribe(tf.zeros([1, 8_000]), 8_000))
    ['seconds', 'texts', 'tokens']
    """
    preprocessor = model.preprocessor
    served = served_tokenizer(preprocessor.tokenizer)
    most = max_length * preprocessor.position_samples

    def short_enough(counts):
        seconds = most / SAMPLING_RATE
        message = f"it must last at most {seconds:g} seconds, {most} samples of 16 kHz, but has"
        return counts <= most, message

    def transcribed(name, samples, counts):
        counts = checks.checked(name, counts, 1, [short_enough])

        def whole():
            return logits_of(samples, counts)

        def in_windows():
            windows = windows_of_sounds(samples, counts, preprocessor)
            logits = tf.map_fn(lambda x: logits_of(*x), windows, fn_output_signature=tf.float32)
            return join_windows(logits, counts, preprocessor)

        positions = -(-tf.shape(samples)[1] // preprocessor.position_samples)
        window = preprocessor.sequence_length
        with tf.control_dependencies([counts]):
            logits = whole() if window is None else tf.cond(positions > window, in_windows, whole)
        return _read_off(logits, preprocessor, served)

    def logits_of(samples, counts):
        features, mask = preprocessor.audio_converter(samples, counts=counts)
        inputs = {"features": features, "padding_mask": tf.cast(mask, tf.int32)}
        return model(inputs, training=False)

    def transcribe(sound_bytes):
        sound_bytes = checks.checked("sound_bytes", sound_bytes, 1)
        samples, counts = decode_wavs(sound_bytes)
        return _of_batch(transcribed, "sound_bytes", samples, counts)

    def transcribe_samples(samples, sampling_rate=RATE):
        samples = checks.checked("samples", samples, 2)
        rate = checks.checked("sampling_rate", sampling_rate, 0, [_high_enough])
        samples = resample(samples, rate, SAMPLING_RATE)
        counts = tf.fill(tf.shape(samples)[:1], tf.shape(samples)[1])
        return _of_batch(transcribed, "samples", samples, counts)

    files = [tf.TensorSpec([None], tf.string, name="sound_bytes")]
    numbers = [
        tf.TensorSpec([None, None], tf.float32, name="samples"),
        tf.TensorSpec([], tf.int32, name="sampling_rate"),
    ]
    return {
        "transcribe": tf.function(transcribe, files, autograph=False),
        "transcribe_samples": tf.function(transcribe_samples, numbers, autograph=False),
    }


def _high_enough(rate):
    """Condition that sampling rates are not so low that a few samples would fill the memory."""
    return rate >= LOWEST_RATE, f"it must be at least {LOWEST_RATE}"


def _of_batch(transcribed, name, samples, counts):
    """Transcribes a batch that may be empty, of sounds that may have no samples."""
    batch = tf.shape(samples)[0]

    def nothing():
        return {
            "texts": tf.fill([batch], ""),
            "tokens": tf.fill([batch, 0], ""),
            "seconds": tf.zeros([batch, 0]),
        }

    return tf.cond(tf.size(samples) > 0, lambda: transcribed(name, samples, counts), nothing)


def _read_off(logits, preprocessor, served):
    """Returns the texts, the tokens and their times; see `transcribing_functions`."""
    tokenizer = preprocessor.tokenizer
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    before = tf.pad(best, [[0, 0], [1, 0]], constant_values=BLANK)[:, :-1]
    is_special = tf.reduce_any(best[:, :, None] == sorted(tokenizer.special_token_ids), axis=-1)
    new = (best != before) & (best != BLANK) & ~is_special
    seconds_of_one = preprocessor.position_samples / SAMPLING_RATE
    seconds = seconds_of_one * tf.range(tf.shape(best)[1], dtype=tf.float32)
    seconds = tf.broadcast_to(seconds, tf.shape(best))
    tokens = tf.ragged.boolean_mask(tf.gather(tf.constant(tokenizer.get_vocabulary()), best), new)
    return {
        "texts": served.strings(best, new),
        "tokens": tokens.to_tensor(""),
        "seconds": tf.ragged.boolean_mask(seconds, new).to_tensor(0.0),
    }
