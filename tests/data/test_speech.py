import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import ByteTokenizer, pack_examples
from rt_keras.data.speech import (
    at_speeds,
    evaluation_speech,
    joined,
    load_speech,
    training_speech,
    usable,
)
from rt_keras.data.wav import decode_wavs, encode_wav, wav_samples
from rt_keras.models import (
    RoutingTransformerAudioConverter,
    RoutingTransformerSpeechRecognizerPreprocessor,
)
from tests.data.checks import write_set

# Samples in a position.
POSITION = 640


def make_preprocessor(sequence_length=10, label_length=6):
    return RoutingTransformerSpeechRecognizerPreprocessor(
        ByteTokenizer(), RoutingTransformerAudioConverter(4), sequence_length, label_length
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


def samples_of(sound):
    return wav_samples(sound).tobytes()


def texts(speech):
    return [example["text"].decode() for example in speech.as_numpy_iterator()]


def write_speech(name, folder, **counts):
    """Writes recordings of a second each, in the format of a set of TensorFlow Datasets."""
    rate = {"ljspeech": 22_050, "vctk": 48_000}.get(name, 16_000)
    others = {
        "librispeech": {"speaker_id": 1, "chapter_id": 1},
        "ljspeech": {},
        "vctk": {"speaker": 1, "gender": 1, "accent": 1},
        "tedlium": {"speaker_id": "a", "gender": 1},
    }[name]

    def example(split, number):
        text = f"Hello ÜBER {split} {number}"
        if name == "ljspeech":
            others["text_normalized"], text = text, "Mr. 1"
        samples = np.full([rate], 100 * number, "int16")
        return {**others, "id": f"{split}-{number}", "text": text, "speech": samples}

    splits = {x: [example(x, number) for number in range(n)] for x, n in counts.items()}
    write_set(name, folder, splits)


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


def test_a_folder_of_recordings(tmp_path):
    folder = tmp_path / "words" / "test"
    folder.mkdir(parents=True)
    for number in range(3):
        sound = recording(number, 8, "")["sound"]
        (folder / f"{number}.wav").write_bytes(sound)
        (folder / f"{number}.txt").write_text(f"text {number}")
    speech = load_speech("speech_folder", "test", folder.parent, tmp_path / "prepared")
    found = sorted(speech.as_numpy_iterator(), key=lambda example: example["id"])
    for number, example in enumerate(found):
        assert example["id"].decode() == f"test/{number}.wav"
        assert example["text"].decode() == f"text {number}"
        assert example["sound"] == recording(number, 8, "")["sound"]
    again = load_speech("speech_folder", "test", folder.parent, tmp_path / "prepared")
    assert texts(again) == texts(speech)


def test_librispeech(tmp_path):
    write_speech(
        "librispeech",
        tmp_path,
        train_clean100=1,
        train_clean360=1,
        train_other500=1,
        dev_clean=2,
        dev_other=1,
        test_clean=1,
    )
    train = load_speech("librispeech", "train", data_dir=tmp_path)
    assert set(train.element_spec) == {"id", "sound", "text"}
    assert sorted(texts(train)) == [
        f"hello über train_{part} 0" for part in ("clean100", "clean360", "other500")
    ]
    validation = load_speech("librispeech", "validation", data_dir=tmp_path)
    found = {example["id"]: example["sound"] for example in validation.as_numpy_iterator()}
    assert set(found) == {b"dev_clean-0", b"dev_clean-1"}
    for name, sound in found.items():
        assert wav_samples(sound).tolist() == [100 * int(name[-1:])] * 16_000
    assert texts(load_speech("librispeech", "test", data_dir=tmp_path)) == [
        "hello über test_clean 0"
    ]


def test_tedlium(tmp_path):
    write_speech("tedlium", tmp_path, train=2, validation=1, test=1)
    for split, count in {"train": 2, "validation": 1, "test": 1}.items():
        expected = [f"hello über {split} {number}" for number in range(count)]
        assert sorted(texts(load_speech("tedlium", split, data_dir=tmp_path))) == expected


@pytest.mark.parametrize("name", ["ljspeech", "vctk"])
def test_sets_with_one_split_and_another_sampling_rate(name, tmp_path):
    write_speech(name, tmp_path, train=20)
    parts = {
        split: list(load_speech(name, split, data_dir=tmp_path).as_numpy_iterator())
        for split in ("train", "validation", "test")
    }
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 18,
        "validation": 1,
        "test": 1,
    }
    everything = sum(parts.values(), [])
    assert len({example["id"] for example in everything}) == 20
    for example in everything:
        number = int(example["id"].split(b"-")[1])
        assert example["text"].decode() == f"hello über train {number}"
        (samples,), (count,) = decode_wavs([example["sound"]])
        assert count == 16_000
        # The sound is a constant, which resampling does not change.
        np.testing.assert_allclose(samples, 100 * number / 2**15, rtol=0, atol=2 / 2**15)


@pytest.mark.parametrize("name", ["ljspeech", "vctk"])
def test_lengths_of_another_sampling_rate(name, tmp_path):
    write_speech(name, tmp_path, train=20)
    speech = load_speech(name, "train", data_dir=tmp_path)
    # Seconds of 25 positions each.
    one, three = make_preprocessor(25, 25), make_preprocessor(75, 75)
    assert texts(usable(speech, one)) == texts(speech)
    sounds = [example["sound"] for example in joined(speech, three).as_numpy_iterator()]
    _, counts = decode_wavs(sounds)
    assert counts.numpy().tolist() == 6 * [3 * 16_000]


@pytest.mark.parametrize("split", ["dev", "train_clean100", ""])
def test_splits_that_do_not_exist(split, tmp_path):
    write_speech("librispeech", tmp_path, dev_clean=1)
    with pytest.raises(ValueError, match="split must be one of train, validation, test. Received"):
        load_speech("librispeech", split, data_dir=tmp_path)


def test_wrong_sets_and_folders(tmp_path):
    with pytest.raises(ValueError, match="must be speech_folder or one of librispeech.*'squad'"):
        load_speech("squad", "train")
    with pytest.raises(ValueError, match="directory must be the path to read for speech_folder"):
        load_speech("speech_folder", "train")
    with pytest.raises(ValueError, match="directory must be None for tedlium"):
        load_speech("tedlium", "train", directory=tmp_path)
    with pytest.raises(FileNotFoundError, match="directory must exist"):
        load_speech("speech_folder", "train", tmp_path / "nowhere")


def test_recordings_that_cannot_be_learnt_are_left_out_and_counted(capsys):
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
    found = usable(speech, make_preprocessor())
    assert found.element_spec == speech.element_spec
    assert texts(found) == ["abc", "aab", "aaaa", "abc"]
    assert capsys.readouterr().err == (
        "4 recordings are left out, such as 1 (11 positions, for 10 of the model), 2 (no text), "
        "3 (4 tokens in 3 positions)\n"
    )
    assert texts(usable(speech.skip(5).take(1), make_preprocessor())) == []
    assert "5 (7 tokens, for 6 of the labels)" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_counted(tmp_path, capsys):
    folder = tmp_path / "words" / "train"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.wav").write_bytes(recording(number, 8 * number, "")["sound"])
        (folder / f"{number}.txt").write_text(f"text {number}")
    speech = load_speech("speech_folder", "train", folder.parent, tmp_path / "prepared")
    assert sorted(texts(speech)) == ["text 1", "text 2"]
    message = "1 recordings are left out, such as train/0.wav (lasts 0.0 seconds; "
    assert message in capsys.readouterr().err


def test_nothing_is_said_where_nothing_is_left_out(capsys):
    speech = dataset_of((POSITION, "a"), (POSITION, "b"))
    assert texts(usable(speech, make_preprocessor())) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_recordings_are_joined(capsys):
    speech = dataset_of(
        (4 * POSITION, "ab"),
        (5 * POSITION - 9, "c"),
        (2 * POSITION, "d"),
        (11 * POSITION, "left out"),
        (2 * POSITION + 1, "éf"),
        (POSITION, "g"),
    )
    first, second, third = joined(speech, make_preprocessor()).as_numpy_iterator()
    # A letter more would be too many.
    assert [x["text"].decode() for x in (first, second, third)] == ["ab c", "d éf", "g"]
    assert [x["id"] for x in (first, second, third)] == [b"0", b"2", b"5"]
    parts = list(speech.as_numpy_iterator())
    for found, numbers in ((first, (0, 1)), (second, (2, 4)), (third, (5,))):
        expected = np.concatenate([wav_samples(parts[number]["sound"]) for number in numbers])
        np.testing.assert_array_equal(wav_samples(found["sound"]), expected)
    assert capsys.readouterr().err.startswith("1 recordings are left out, such as 3 ")


@settings(max_examples=5)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.text("ab", min_size=1, max_size=3)), min_size=2, max_size=8
    )
)
def test_joined_recordings_hold_all_texts_and_can_be_learnt(recordings):
    speech = dataset_of(*[(positions * POSITION, text) for positions, text in recordings])
    preprocessor = make_preprocessor()
    parts = list(usable(speech, preprocessor).as_numpy_iterator())
    found = joined(speech, preprocessor).cache()
    sounds, words = ([x[name] for x in found.as_numpy_iterator()] for name in ("sound", "text"))
    assert texts(usable(found, preprocessor)) == [text.decode() for text in words]
    assert b" ".join(words) == b" ".join(x["text"] for x in parts)
    assert b"".join(map(samples_of, sounds)) == b"".join(samples_of(x["sound"]) for x in parts)


@pytest.fixture
def packed(tmp_path):
    speech = dataset_of(*[((number + 1) * POSITION, "abcde"[number]) for number in range(5)])
    return pack_examples(usable(speech, make_preprocessor()), tmp_path / "packed")


def letters(labels):
    return ["".join(chr(token - 2) for token in row if token) for row in np.asarray(labels)]


def test_training_batches(packed):
    batches = training_speech(packed, make_preprocessor(), 2, seed=1)
    inputs = {
        "features": tf.TensorSpec([2, 40, 4]),
        "padding_mask": tf.TensorSpec([2, 40], tf.bool),
    }
    labels = tf.TensorSpec([2, 6], tf.int32)
    assert batches.element_spec == (inputs, labels, tf.TensorSpec([2]))
    seen = []
    for inputs, labels, weights in batches.take(5).as_numpy_iterator():
        seen += letters(labels)
        assert weights.tolist() == [1, 1]
        frames = [4 * ("abcde".index(text) + 1) for text in letters(labels)]
        assert inputs["padding_mask"].sum(axis=1).tolist() == frames
        assert not np.any(inputs["features"][~inputs["padding_mask"]])
    assert sorted(seen[:5]) == sorted(seen[5:]) == list("abcde")


def test_training_starts_at_any_batch_and_is_shared(packed):
    whole, later, other = (
        list(training_speech(packed, make_preprocessor(), 2, **order).take(4))
        for order in ({}, {"first_batch": 2}, {"seed": 5})
    )
    tf.nest.map_structure(np.testing.assert_array_equal, whole[2:], later[:2])
    seen, others = ([letters(y) for _, y, _ in batches] for batches in (whole, other))
    assert seen != others
    share = training_speech(packed, make_preprocessor(), 2, share=(1, 2)).take(4)
    assert [letters(labels) for _, labels, _ in share] == [[second] for _, second in seen]


def test_evaluation_has_every_recording_that_can_be_aligned_once(capsys):
    speech = dataset_of((POSITION, "a"), (POSITION, "ab"), (3 * POSITION, "cd"), (900, "e"))
    batches = list(evaluation_speech(speech, make_preprocessor(), 2))
    assert [letters(labels) for _, labels, _ in batches] == [["a", "cd"], ["e", ""]]
    assert [weights.numpy().tolist() for _, _, weights in batches] == [[1, 1], [1, 0]]
    inputs = batches[1][0]
    assert inputs["features"].shape == (2, 40, 4)
    assert np.sum(inputs["padding_mask"], axis=1).tolist() == [6, 0]
    assert "1 recordings are left out" in capsys.readouterr().err


def test_bad_numbers():
    speech = dataset_of((POSITION, "a"))
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        evaluation_speech(speech, make_preprocessor(), 0)


def test_batches_of_buckets(packed):
    """Five recordings of 1 to 5 positions: a, b and c, then d and e."""

    def batches(**order):
        return training_speech(packed, make_preprocessor(), 2, num_buckets=2, **order)

    def close(a, b):
        np.testing.assert_allclose(a, b, atol=1e-5)

    found = list(batches().take(6).as_numpy_iterator())
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
    for first in (1, 2, 3):
        later = list(batches(first_batch=first).take(3).as_numpy_iterator())
        tf.nest.map_structure(close, later, found[first : first + 3])
    share = batches(share=(1, 2)).take(4)
    assert [letters(labels) for _, labels, _ in share] == [[texts[1]] for texts in seen[:4]]
    with pytest.raises(ValueError, match="from 1 to the number of recordings, 5. Received: num_bu"):
        training_speech(packed, make_preprocessor(), 2, num_buckets=6)
