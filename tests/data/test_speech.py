import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.data import ByteTokenizer, pack_examples
from rt_keras.data.speech import (
    at_speeds,
    evaluation_speech,
    joined,
    load_speech,
    split_of_set,
    training_speech,
    usable,
)
from rt_keras.data.wav import decode_wavs, encode_wav, wav_samples
from tests.data.checks import check_order, write_set

# Samples in a position.
POSITION = 640


def make_preprocessor(sequence_length=10, label_length=6):
    return models.RoutingTransformerSpeechRecognizerPreprocessor(
        ByteTokenizer(), models.RoutingTransformerAudioConverter(4), sequence_length, label_length
    )


def recording(number, samples, text):
    sound = np.random.default_rng(number).integers(-1000, 1000, samples) / 2**15
    return {"id": f"{number}", "sound": encode_wav(sound, 16_000), "text": text}


def dataset_of(*recordings):
    """Returns recordings of pairs of a number of samples and a text."""
    columns = {"id": [], "sound": [], "text": []}
    for number, (samples, text) in enumerate(recordings):
        for name, value in recording(number, samples, text).items():
            columns[name].append(value)
    return tf.data.Dataset.from_tensor_slices(columns)


def texts(speech):
    return [example["text"].decode() for example in speech.as_numpy_iterator()]


def test_copies_at_other_speeds():
    """A tone of n samples has n / speed samples, and its pitch is higher by the speed."""
    rate, hertz, count = 16_000, 1_600, 15_000
    tone = 0.5 * np.sin(2 * np.pi * hertz * np.arange(count) / rate)
    sounds = {"id": ["a"], "sound": [encode_wav(tone, rate)], "text": ["hi"]}
    speech = tf.data.Dataset.from_tensor_slices(sounds)
    found = list(at_speeds(speech, 0.25).as_numpy_iterator())
    assert [(x["id"], x["text"]) for x in found] == 3 * [(b"a", b"hi")]
    for example, speed in zip(found, (0.75, 1.0, 1.25)):
        samples = wav_samples(example["sound"]) / 2**15
        assert len(samples) == count / speed
        expected = 0.5 * np.sin(2 * np.pi * hertz * speed * np.arange(len(samples)) / rate)
        np.testing.assert_allclose(samples, expected, atol=1e-3)
    assert found[1]["sound"] == sounds["sound"][0]
    assert at_speeds(speech, 0) is speech


def test_a_folder_of_recordings_without_those_that_cannot_be_read(tmp_path):
    folder = tmp_path / "words" / "test"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.wav").write_bytes(recording(number, 8 * number, "")["sound"])
        (folder / f"{number}.txt").write_text(f"text {number}")
    message = r"1 recordings are left out, such as test/0.wav \(lasts 0.0 seconds; "
    with pytest.warns(UserWarning, match=message):
        speech = load_speech("speech_folder", "test", folder.parent, tmp_path / "prepared")
    assert sorted(texts(speech)) == ["text 1", "text 2"]


def test_splits_of_sets_and_other_names():
    first, more = split_of_set("librispeech", "train")
    assert first + more == "train_clean100+train_clean360+train_other500"
    assert split_of_set("tedlium", "validation") == ("validation", "")
    with pytest.raises(ValueError, match="one of train, validation, test. Received: split='dev'"):
        split_of_set("librispeech", "dev")
    with pytest.raises(ValueError, match="must be speech_folder or one of librispeech.*'squad'"):
        load_speech("squad", "train")


@pytest.mark.parametrize(
    "name, rate, text, others",
    [
        ("ljspeech", 22_050, "text_normalized", {"text": "Mr. 1"}),
        ("vctk", 48_000, "text", {"speaker": 1, "gender": 1, "accent": 1}),
    ],
)
def test_sets_with_one_split_and_another_sampling_rate(name, rate, text, others, tmp_path):
    recordings = [
        {"id": f"train-{x}", "speech": np.full([rate // 10], 100 * x, "int16"), **others}
        | {text: f"Hello ÜBER {x}"}
        for x in range(20)
    ]
    write_set(name, tmp_path, {"train": recordings})
    splits = {x: load_speech(name, x, data_dir=tmp_path) for x in ("train", "validation", "test")}
    parts = [list(part.as_numpy_iterator()) for part in splits.values()]
    assert list(map(len, parts)) == [18, 1, 1]
    everything = sum(parts, [])
    assert len({example["id"] for example in everything}) == 20
    for example in everything:
        number = int(example["id"].split(b"-")[1])
        assert example["text"].decode() == f"hello über {number}"
        (samples,), (count,) = decode_wavs([example["sound"]])
        assert count == 1_600
        # The sound is a constant, which resampling does not change.
        np.testing.assert_allclose(samples, 100 * number / 2**15, rtol=0, atol=2 / 2**15)


def test_recordings_that_cannot_be_learnt_are_left_out_and_counted(recwarn):
    speech = dataset_of(
        (10 * POSITION, "abc"),
        (10 * POSITION + 1, "too long"),
        (10 * POSITION, ""),
        # A blank is between equal letters.
        (3 * POSITION, "aab"),
        (4 * POSITION, "aab"),
        (10 * POSITION, "abcdefg"),
        (10 * POSITION, "aaaa"),
        (2 * POSITION + 1, "abc"),
    )
    assert texts(usable(speech.take(1), make_preprocessor())) == ["abc"]
    assert not recwarn.list
    found = usable(speech, make_preprocessor())
    assert found.element_spec == speech.element_spec
    assert texts(found) == ["abc", "aab", "aaaa", "abc"]
    assert str(recwarn.pop().message) == (
        "4 recordings are left out, such as 1 (11 positions, for 10 of the model), 2 (no text), "
        "3 (4 tokens in 3 positions)"
    )
    assert texts(usable(speech.skip(5).take(1), make_preprocessor())) == []
    assert "5 (7 tokens, for 6 of the labels)" in str(recwarn.pop().message)


def test_recordings_are_joined_as_long_as_they_fit():
    speech = dataset_of(
        (4 * POSITION, "ab"),
        (5 * POSITION - 9, "c"),
        (2 * POSITION, "d"),
        (11 * POSITION, "left out"),
        (2 * POSITION + 1, "éf"),
        (POSITION, "g"),
    )
    found = list(joined(speech, make_preprocessor()).as_numpy_iterator())
    # A letter more would be too many.
    assert [x["text"].decode() for x in found] == ["ab c", "d éf", "g"]
    assert [x["id"] for x in found] == [b"0", b"2", b"5"]
    parts = list(speech.as_numpy_iterator())
    for example, numbers in zip(found, ((0, 1), (2, 4), (5,))):
        expected = np.concatenate([wav_samples(parts[number]["sound"]) for number in numbers])
        np.testing.assert_array_equal(wav_samples(example["sound"]), expected)


@pytest.fixture
def packed(tmp_path):
    speech = dataset_of(*[((number + 1) * POSITION, "abcde"[number]) for number in range(5)])
    return pack_examples(usable(speech, make_preprocessor()), tmp_path / "packed")


def letters(labels):
    return ["".join(chr(token - 2) for token in row if token) for row in np.asarray(labels)]


def test_evaluation_has_every_recording_that_can_be_aligned_once():
    speech = dataset_of((POSITION, "a"), (POSITION, "ab"), (3 * POSITION, "cd"), (900, "e"))
    with pytest.warns(UserWarning, match="^1 recordings are left out"):
        batches = list(evaluation_speech(speech, make_preprocessor(), 2))
    assert [letters(labels) for _, labels, _ in batches] == [["a", "cd"], ["e", ""]]
    assert [weights.numpy().tolist() for _, _, weights in batches] == [[1, 1], [1, 0]]
    inputs = batches[1][0]
    assert inputs["features"].shape == (2, 40, 4)
    assert np.sum(inputs["padding_mask"], axis=1).tolist() == [6, 0]


@pytest.mark.slow
def test_batches_of_buckets_have_the_length_of_their_longest(packed):
    """Five recordings of 1 to 5 positions: a, b and c, then d and e."""

    read = functools.partial(training_speech, packed, make_preprocessor(), 2, num_buckets=2)
    found = list(check_order(read, 1e-5).take(6).as_numpy_iterator())
    seen = ["".join(letters(labels)) for _, labels, _ in found]
    assert sorted("".join(seen[::2])) == list("aabbcc")
    assert [sorted(texts) for texts in seen[1::2]] == [["d", "e"]] * 3
    whole = training_speech(packed, make_preprocessor(), 5)
    inputs, labels, _ = next(iter(whole.as_numpy_iterator()))
    expected = dict(zip(letters(labels), inputs["features"]))
    for (inputs, labels, _), longest in zip(found, 3 * (3, 5)):
        assert inputs["features"].shape == (2, 4 * longest, 4)
        for row, mask, text in zip(inputs["features"], inputs["padding_mask"], letters(labels)):
            assert mask.sum() == 4 * ("abcde".index(text) + 1)
            np.testing.assert_allclose(row, expected[text][: 4 * longest], atol=1e-5)
    with pytest.raises(ValueError, match="from 1 to the number of recordings, 5. Received: num_bu"):
        training_speech(packed, make_preprocessor(), 2, num_buckets=6)
