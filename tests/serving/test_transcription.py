import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.data.wav import encode_wav
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from tests.models.speech.test_speech_recognizer import make_model, make_preprocessor
from tests.serving.served import by_command, check_refused
from tests.serving.server import serving

pytestmark = pytest.mark.slow

RATE = 16_000


@pytest.fixture(scope="module")
def model():
    heads = [LocalHeads(1, 8), FullHeads(1), RoutingHeads(2, 4, 8, assignment="nearest")]
    # Sounds of over 4 seconds are heard in windows.
    return make_model(make_preprocessor(sequence_length=100), head_groups=heads)


def sounds(*seconds):
    """Returns chirps of these lengths, so that different classes are likely."""
    times = [np.arange(int(length * RATE)) / RATE for length in seconds]
    return [0.5 * np.sin(2 * np.pi * (300 + 400 * time) * time) for time in times]


def wavs(*seconds, rate=RATE):
    return [encode_wav(sound, rate) for sound in sounds(*seconds)]


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return by_command(model, tmp_path_factory.mktemp("speech"), "--max-length", 250)


def texts(answer):
    return [text.decode() for text in np.array(answer["texts"]).tolist()]


def test_each_row_is_that_of_the_model_alone(model, exported):
    # The last but one is almost as long as a window; the last one is heard in windows.
    files = wavs(1.0, 0.3, 2.5, 0.01, 3.9, 5.0)
    expected = [model.transcribe([file])[0] for file in files]
    assert expected[0] and expected[0] != expected[2]
    assert texts(exported.loaded.transcribe(tf.constant(files))) == expected
    assert texts(exported.loaded.transcribe(tf.constant([], tf.string))) == []
    assert texts(exported.loaded.transcribe(tf.constant([""]))) == [""]


def test_tokens_have_times(exported):
    answer = exported.loaded.transcribe(tf.constant(wavs(1.0, 0.3)))
    answer = {name: np.array(x) for name, x in answer.items()}
    for row, text in enumerate(texts(answer)):
        count = len(text)
        ids = [int(token) for token in ByteTokenizer().tokenize(text)]
        vocabulary = ByteTokenizer().get_vocabulary()
        assert [x.decode() for x in answer["tokens"][row, :count]] == [vocabulary[i] for i in ids]
        assert not any(answer["tokens"][row, count:]) and not any(answer["seconds"][row, count:])
    first = answer["seconds"][0, : len(texts(answer)[0])]
    # Multiples of 40 ms within the second.
    assert np.all(np.diff(first) > 0) and first[-1] < 1
    np.testing.assert_allclose(first / 0.04, np.round(first / 0.04), atol=1e-3)


def test_samples_of_any_rate(model, exported):
    (sound,) = sounds(1.0)
    samples = tf.constant(sound[None], tf.float32)
    assert texts(exported.loaded.transcribe_samples(samples)) == model.transcribe(sound[None])
    half = exported.loaded.transcribe_samples(samples, tf.constant(2 * RATE))
    assert float(np.max(half["seconds"])) < 0.5


def test_wrong_sounds_are_refused(exported):
    long = "sound_bytes: it must last at most 10 seconds.*160000 samples .*192000"
    cases = [
        ({"sound_bytes": [b"words"]}, "sounds_must_be_wav_files_of_16_bits"),
        ({"sound_bytes": wavs(12.0)}, long),
    ]
    check_refused(exported.loaded.transcribe, cases)
    # At which a few samples would fill the memory.
    with pytest.raises(tf.errors.InvalidArgumentError, match="sampling_rate.*at least 1000"):
        exported.loaded.transcribe_samples(tf.zeros([1, 100]), tf.constant(999))


@pytest.mark.weekly
def test_clients_print_what_is_heard(exported, clients, tmp_path, capsys):
    (file,) = wavs(5)
    (expected,) = texts(exported.loaded.transcribe(tf.constant([file])))
    (tmp_path / "chirp.wav").write_bytes(file)
    with serving(exported.folder) as addresses:
        for client, address in zip(clients, addresses):
            words = ["--server", address, "transcribe", str(tmp_path / "chirp.wav")]
            assert client.main(words) == 0
            assert f"texts: {expected}\n" in capsys.readouterr().out
