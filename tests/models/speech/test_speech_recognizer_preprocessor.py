import numpy as np
import pytest

from rt_keras.data import ByteTokenizer, WordPieceTokenizer
from rt_keras.data.wav import encode_wav
from rt_keras.models import RoutingTransformerAudioConverter
from rt_keras.models import RoutingTransformerSpeechRecognizerPreprocessor as Preprocessor
from tests.layers.checks import close

RNG = np.random.default_rng(0)


def make(sequence_length=None, label_length=None, tokenizer=None):
    converter = RoutingTransformerAudioConverter(8)
    return Preprocessor(tokenizer or ByteTokenizer(), converter, sequence_length, label_length)


def noise(*shape):
    return RNG.integers(-(2**15), 2**15, shape) / np.float32(2**15)


def test_strings_are_the_same_as_samples():
    preprocessor, sounds = make(), [noise(900), noise(1500), noise(640)]
    files = [encode_wav(sound, 16_000) for sound in sounds]
    x, _, weights = preprocessor(files, ["a", "b", "c"], np.array([1.0, 0.5, 0.0]))
    assert weights.tolist() == [1.0, 0.5, 0.0]
    assert np.sum(x["padding_mask"], axis=1).tolist() == [6, 10, 4]
    for features, mask, sound in zip(x["features"], x["padding_mask"], sounds):
        close(features[mask], preprocessor(sound[None])["features"][0], 1e-5)
    # Of another sampling rate, 0.1 seconds.
    slower = np.sin(2 * np.pi * 400 * np.arange(800) / 8_000)
    assert preprocessor([encode_wav(slower, 8_000)])["features"].shape == (1, 10, 8)


@pytest.mark.parametrize("count", [1000, 3 * 640, 2000])
def test_sounds_are_truncated_or_padded(count):
    preprocessor, sound = make(sequence_length=3), noise(1, count)
    for x in (preprocessor(sound), preprocessor([encode_wav(sound[0], 16_000)])):
        assert x["features"].shape == (1, 12, 8)
        frames = min(12, -(-count // 160))
        assert np.sum(x["padding_mask"]) == frames and np.all(x["padding_mask"][:, :frames])
        expected = make()(sound[:, : 3 * 640])["features"]
        close(x["features"][:, :frames], expected, 1e-4)
        assert not np.any(x["features"][:, frames:])


def test_an_empty_string_is_padding():
    sound = encode_wav(noise(640), 16_000)
    for sequence_length, frames in ((None, 4), (3, 12)):
        x, y = make(sequence_length, 2)([b"", sound], ["", "a"])
        assert x["features"].shape == (2, frames, 8)
        assert np.sum(x["padding_mask"], axis=1).tolist() == [0, 4]
        assert y.numpy().tolist() == [[0, 0], [99, 0]]


def test_sounds_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match=r"x must have rows of one length.*lengths \[2, 1\]"):
        make().samples([[0.0, 0.1], [0.2]])


def test_a_tokenizer_whose_padding_is_not_the_blank():
    tokenizer = WordPieceTokenizer(["[UNK]", "[PAD]", "[SEP]", "the"])
    with pytest.raises(ValueError, match="must have padding as token 0.* a WordPiece.* 1"):
        make(tokenizer=tokenizer)
