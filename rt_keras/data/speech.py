"""Recordings with their texts, and batches for speech recognizers."""

import warnings

import numpy as np
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.data_sets import DataSets, read
from rt_keras.data.examples import packed_strings, shuffled_batches
from rt_keras.data.wav import SAMPLING_RATE, encode_wav, resample, wav_samples

SETS = DataSets(
    "speech_folder or one of librispeech, ljspeech, vctk and tedlium",
    "librispeech|ljspeech|vctk|tedlium",
    ("speech_folder",),
)
# The splits of the sets of TensorFlow Datasets, and their parts.
SPLITS = {
    "librispeech": {
        "train": ("train_clean100", "+train_clean360+train_other500"),
        "validation": ("dev_clean", ""),
        "test": ("test_clean", ""),
    },
    "tedlium": {split: (split, "") for split in ("train", "validation", "test")},
}
# Those of sets with a single split.
HELD_OUT = {
    "train": ("train", "[:90%]"),
    "validation": ("train", "[90%:95%]"),
    "test": ("train", "[95%:]"),
}
# The sampling rates of the sets, in Hz.
RATES = {"ljspeech": 22_050, "vctk": 48_000}


def load_speech(name, split, directory=None, data_dir=None):
    """Loads the recordings of one split with their texts.

    Files of a folder that cannot be read are left out, which is printed once.

    Args:
        name: "speech_folder" (the sounds of `directory`; see `SpeechFolder`), or a set downloaded
            by TensorFlow Datasets if needed: "librispeech" (960 hours; validation and test are the
            clean sets), "tedlium", or "ljspeech" and "vctk", which have one split, of which the
            last 5% are for testing and the 5% before for validation.
        split: "train", "validation" or "test".
        directory: path of the folder for "speech_folder".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        `tf.data.Dataset` of dictionaries of scalar strings, in a fixed order: "id"; "sound", the
        bytes of a WAV file of 16 bits; and "text".

    Raises:
        FileNotFoundError: if the folder or its files do not exist.
        ValueError: if there is no such set or split, if `directory` is missing or given to a set
            that does not take one, or if no file of a split is a sound.
        OSError: if the set cannot be downloaded and prepared.

    Source: LibriSpeech: Panayotov et al. 2015; TED-LIUM: Rousseau et al. 2012.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rt_keras.data.wav import encode_wav
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "test").mkdir()
    >>> _ = (folder / "test" / "no.wav").write_bytes(encode_wav(np.zeros(8), 16_000))
    >>> _ = (folder / "test" / "no.txt").write_text("no")
    >>> speech = load_speech("speech_folder", "test", folder, data_dir=folder / "prepared")
    >>> [(x["id"], x["text"]) for x in speech.as_numpy_iterator()]
    [(b'test/no.wav', b'no')]
    """
    builder = SETS.prepared(name, directory, data_dir)
    if name in SETS.folders:
        _warn_left_out((builder.info.metadata or {}).get("left_out", []))
        return read(builder, split)
    first, part = split_of_set(name, split)
    text = "text_normalized" if name == "ljspeech" else "text"

    def recording(example):
        samples = tf.cast(example["speech"], tf.float32) / 2**15
        samples = resample(samples, RATES.get(name, SAMPLING_RATE), SAMPLING_RATE)
        return {
            "id": example["id"],
            "sound": tf.audio.encode_wav(samples[:, None], SAMPLING_RATE),
            "text": tf.strings.lower(example[text], "utf-8"),
        }

    return read(builder, first, part).map(recording)


def split_of_set(name, split):
    """Returns the split of a set of TensorFlow Datasets that has a split of ours, and its part.

    >>> split_of_set("ljspeech", "test"), split_of_set("librispeech", "validation")
    (('train', '[95%:]'), ('dev_clean', ''))
    """
    splits = SPLITS.get(name, HELD_OUT)
    if split not in splits:
        raise wrong_value("split", f"one of {', '.join(splits)}", split)
    return splits[split]


def at_speeds(speech, change):
    """Adds each recording at a lower and a higher speed, which also changes its pitch.

    A model then hears three times as much speech, of other speakers.

    Args:
        speech: `tf.data.Dataset`, as from `load_speech`.
        change: float, the share of the speed by which the copies are slower and faster; at 0, there
            are none.

    Returns:
        A `tf.data.Dataset` of all recordings at the speed `1 - change`, then as they are, then at
        `1 + change`.

    Source: Ko et al. 2015, section 2.2, where `change` is 0.1.
    """
    if not change:
        return speech

    def read():
        for speed in (1 - change, 1.0, 1 + change):
            rate = round(SAMPLING_RATE * speed)
            for example in speech.as_numpy_iterator():
                samples = wav_samples(example["sound"]).astype("float32") / 2**15
                sound = encode_wav(resample(samples, rate, SAMPLING_RATE), SAMPLING_RATE)
                yield {**example, "sound": sound}

    return tf.data.Dataset.from_generator(read, output_signature=speech.element_spec)


def usable(speech, preprocessor):
    """Leaves out recordings that a model cannot learn: no alignment has that many tokens.

    The number of recordings that are left out, and the first of them, are printed once.

    Args:
        speech: `tf.data.Dataset`, as from `load_speech`.
        preprocessor: a `RoutingTransformerSpeechRecognizerPreprocessor` with lengths.

    Returns:
        A `tf.data.Dataset` of the others.
    """

    def read():
        return (example for example, _ in _sized(speech, preprocessor))

    return tf.data.Dataset.from_generator(read, output_signature=speech.element_spec)


def _sized(speech, preprocessor):
    """Yields the usable recordings with their sizes, and counts those that are left out."""
    left_out = []
    for example in speech.as_numpy_iterator():
        size = _size(example, preprocessor)
        if problem := _problem_of_size(*size, preprocessor):
            left_out.append(f"{example['id'].decode()} ({problem})")
        else:
            yield example, np.array(size)
    _warn_left_out(left_out)


def _warn_left_out(recordings):
    """Warns of the number of recordings that are left out, and of the first of them."""
    if recordings:
        message = f"{len(recordings):,} recordings are left out, such as "
        warnings.warn(message + ", ".join(recordings[:3]), stacklevel=2)


def joined(speech, preprocessor):
    """Joins consecutive recordings to longer ones that fill the sequences of a model.

    Their texts are joined with spaces. Recordings that no sequence can hold are left out, as by
    `usable`.

    Args:
        speech, preprocessor: see `usable`.

    Returns:
        A `tf.data.Dataset` of dictionaries with the same keys.
    """

    def read():
        parts, sizes = [], np.zeros(3, int)
        for example, size in _sized(speech, preprocessor):
            # With a space before the next text.
            together = sizes + size + (0, 1, 1) if parts else size
            if parts and _problem_of_size(*together, preprocessor):
                yield _join(parts)
                parts, together = [], size
            parts.append(example)
            sizes = together
        if parts:
            yield _join(parts)

    return tf.data.Dataset.from_generator(read, output_signature=speech.element_spec)


def _size(example, preprocessor):
    """Returns the positions of a recording, its tokens, and those with blanks between equals."""
    tokens = np.asarray(preprocessor.tokenizer(example["text"]))
    tokens = tokens[tokens != 0]
    positions = -(-len(wav_samples(example["sound"])) // preprocessor.position_samples)
    return positions, len(tokens), len(tokens) + int(np.sum(tokens[1:] == tokens[:-1]))


def _problem_of_size(positions, tokens, aligned, preprocessor):
    """Says why a model cannot learn from a recording of this size; None if it can."""
    if positions > preprocessor.sequence_length:
        return f"{positions:,} positions, for {preprocessor.sequence_length:,} of the model"
    if tokens == 0:
        return "no text"
    if aligned > positions:
        return f"{aligned:,} tokens in {positions:,} positions"
    if tokens > preprocessor.label_length:
        return f"{tokens:,} tokens, for {preprocessor.label_length:,} of the labels"
    return None


def _join(parts):
    samples = np.concatenate([wav_samples(part["sound"]) for part in parts])
    return {
        "id": parts[0]["id"],
        "sound": encode_wav(samples / 2**15, SAMPLING_RATE),
        "text": b" ".join(part["text"] for part in parts),
    }


def training_speech(
    packed, preprocessor, batch_size, seed=0, first_batch=0, share=(0, 1), num_buckets=1
):
    """Returns endless batches to `fit` a `RoutingTransformerSpeechRecognizer`.

    Use them with `steps_per_epoch`. Batch b depends only on the recordings, the seed and b: each
    pass uses a new random order, computed one index at a time. Training can therefore start at any
    batch without delay, and each of several workers can read its part of every batch.

    Args:
        packed: path of a folder of recordings packed by `pack_examples`.
        preprocessor: a `RoutingTransformerSpeechRecognizerPreprocessor` with lengths. The model
            itself must have none, or it is applied twice.
        batch_size: int, number of recordings in a batch, over all workers.
        seed: int, seed of the order. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.
        num_buckets: int. The recordings, sorted by length, are divided into this many buckets of
            about as many recordings. Each batch is from one of them in turn, and has the frames of
            its longest recording, so that little is padding. Defaults to 1, where batches have the
            frames of the preprocessor.

    Returns:
        `tf.data.Dataset` of ({"features": float32 `[batch_size / workers, frames, num_mel_bins]`,
        "padding_mask": bool `[batch_size / workers, frames]`}; labels, int32
        `[batch_size / workers, label_length]`, and weights, float32 `[batch_size / workers]`).

    Raises:
        FileNotFoundError: if the folder holds no packed recordings, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if there are more buckets than recordings, if packing is incomplete, or if a
            file is damaged.

    Example:

    >>> import tempfile
    >>> from rt_keras import models
    >>> from rt_keras.data import ByteTokenizer, pack_examples
    >>> preprocessor = models.RoutingTransformerSpeechRecognizerPreprocessor(
    ...     ByteTokenizer(), models.RoutingTransformerAudioConverter(8), 10, 4
    ... )
    >>> sound = encode_wav(np.zeros(3_200), SAMPLING_RATE)
    >>> speech = tf.data.Dataset.from_tensors({"id": "1", "sound": sound, "text": "no"})
    >>> packed = pack_examples(speech, tempfile.mkdtemp())
    >>> inputs, labels, weights = next(iter(training_speech(packed, preprocessor, batch_size=2)))
    >>> inputs["features"].shape, labels.numpy().tolist()
    (TensorShape([2, 40, 8]), [[112, 113, 0, 0], [112, 113, 0, 0]])
    """
    if num_buckets == 1:
        batches = shuffled_batches(packed, batch_size, seed, first_batch, share)
        return prepared(batches, _prepare(preprocessor, preprocessor.sequence_length))
    streams = []
    for place, (chosen, positions) in enumerate(_buckets(packed, preprocessor, num_buckets)):
        # Batch b is from bucket b mod num_buckets.
        first = (first_batch - place + num_buckets - 1) // num_buckets
        batches = shuffled_batches(packed, batch_size, seed, first, share, chosen)
        streams.append(prepared(batches, _prepare(preprocessor, positions)))
    turns = tf.data.Dataset.counter(first_batch).map(lambda batch: batch % num_buckets)
    return tf.data.Dataset.choose_from_datasets(streams, turns)


def _buckets(packed, preprocessor, num_buckets):
    """Returns the indices of the recordings of each bucket, and the positions of its longest."""
    sizes = [len(wav_samples(sound)) for sound in packed_strings(packed, "sound")]
    if not 1 <= num_buckets <= len(sizes):
        needed = f"from 1 to the number of recordings, {len(sizes):,}"
        raise wrong_value("num_buckets (data.num_buckets)", needed, num_buckets)
    positions = -(-np.array(sizes) // preprocessor.position_samples)
    buckets = np.array_split(np.argsort(positions, kind="stable"), num_buckets)
    return [(bucket, int(positions[bucket].max())) for bucket in buckets]


def evaluation_speech(speech, preprocessor, batch_size):
    """Returns batches that contain each recording that a model can align once, in order.

    Args:
        speech: `tf.data.Dataset`, as from `load_speech`.
        preprocessor: a `RoutingTransformerSpeechRecognizerPreprocessor` with lengths.
        batch_size: int, number of recordings in a batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as from `training_speech`. The weights are 0
        for the silence that pads the last batch.

    Raises:
        ValueError: if `batch_size` is less than 1.

    Example:

    >>> import tempfile
    >>> from rt_keras import models
    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = models.RoutingTransformerSpeechRecognizerPreprocessor(
    ...     ByteTokenizer(), models.RoutingTransformerAudioConverter(8), 10, 4
    ... )
    >>> sound = encode_wav(np.zeros(3_200), SAMPLING_RATE)
    >>> speech = tf.data.Dataset.from_tensors({"id": "1", "sound": sound, "text": "no"})
    >>> for _, _, weights in evaluation_speech(speech, preprocessor, batch_size=2):
    ...     print(weights.numpy())
    [1. 0.]
    """
    batches = filled_batches(usable(speech, preprocessor), batch_size)
    return prepared(batches, _prepare(preprocessor, preprocessor.sequence_length))


def _prepare(preprocessor, positions):
    """Returns a function that preprocesses a batch, cut to a number of positions."""

    def prepare(batch):
        inputs, labels = preprocessor(batch["sound"], batch["text"])
        rows = batch["sound"].shape[0]
        for name, x in inputs.items():
            frames = x.shape[1] * positions // preprocessor.sequence_length
            inputs[name] = tf.ensure_shape(x, [rows, *x.shape[1:]])[:, :frames]
        return inputs, tf.ensure_shape(labels, [rows, labels.shape[1]]), tf.ones([rows])

    return prepare
