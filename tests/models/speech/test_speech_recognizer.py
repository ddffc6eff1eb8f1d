import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.data.wav import encode_wav
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models.speech.speech_recognizer import (
    CTCLoss,
    PaddingToBlank,
    decode_labels,
    texts_of_labels,
)
from tests.layers.checks import close
from tests.models import checks

BINS = 6
RNG = np.random.default_rng(0)


def without_padding(labels):
    return [int(label) for label in labels if label != 0]


def make_preprocessor(bins=BINS, tokenizer=None, **lengths):
    converter = models.RoutingTransformerAudioConverter(bins)
    return models.RoutingTransformerSpeechRecognizerPreprocessor(
        tokenizer or ByteTokenizer(), converter, **lengths
    )


def make_backbone(**changes):
    settings = {"vocabulary_size": 258, "num_mel_bins": BINS, "num_layers": 1}
    return checks.make_backbone(models.RoutingTransformerSpeechBackbone, **{**settings, **changes})


def make_model(preprocessor=None, **changes):
    """A model whose likeliest classes are letters or the blank, as of a trained one."""
    changes = {"head_groups": [FullHeads(1), LocalHeads(1, 4)], **changes}
    backbone = make_backbone(**changes)
    model = models.RoutingTransformerSpeechRecognizer(backbone, preprocessor or make_preprocessor())
    kernel = np.random.default_rng(1).normal(size=model.output_dense.kernel.shape)
    model.output_dense.kernel.assign(kernel)
    letters = np.isin(np.arange(258), [0, *range(ord("a") + 2, ord("z") + 3)])
    model.output_dense.bias.assign(np.where(letters, 0.0, -100.0))
    # Without XLA, whose compilation takes seconds.
    model.compile(jit_compile=False)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def noise(seconds, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, int(16_000 * seconds)).astype("float32")


def read_off(logits):
    """The labels of the likeliest class of each position."""
    groups = itertools.groupby(np.argmax(logits, axis=-1).tolist())
    return [label for label, _ in groups if label != 0]


def test_loss_is_that_of_keras():
    labels = np.array([[1, 1, 2, 0], [3, 0, 0, 0]])
    logits = RNG.normal(size=[2, 8, 4]).astype("float32")
    close(CTCLoss()(labels, logits), keras.losses.CTC()(labels, logits), 1e-4)
    loss = keras.losses.deserialize(keras.losses.serialize(CTCLoss(name="other")))
    assert type(loss) is CTCLoss and loss.name == "other"


def test_padding_is_certainly_blank():
    logits = RNG.normal(size=[2, 4, 3]).astype("float32")
    mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0]])
    found = PaddingToBlank()(logits, mask)
    p = tf.nn.softmax(found).numpy()
    np.testing.assert_allclose(p[mask == 0], [[1, 0, 0]] * 4, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found.numpy()[mask == 1], logits[mask == 1])


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 9))
def test_likeliest_classes_are_read_off(seed, length):
    logits = np.random.default_rng(seed).normal(size=[3, length, 3]).astype("float32")
    found = decode_labels(logits)
    assert found.shape == (3, length) and found.dtype == tf.int32
    for row, labels in zip(logits, found.numpy()):
        assert without_padding(labels) == read_off(row)
        assert not np.any(labels[len(read_off(row)) :])


def test_a_wide_beam_finds_the_likeliest_text():
    # The blank twice has 0.36, and the other class 0.64, over three alignments.
    logits = np.log(np.float32([[[0.6, 0.4], [0.6, 0.4]]]))
    found = [decode_labels(logits, beam_width=width).numpy().tolist() for width in (1, 5)]
    assert [without_padding(labels[0]) for labels in found] == [[], [1]]


def test_texts_of_labels(tokenizer):
    texts = ["the quick fox", "", "the dog jumps"]
    labels = make_preprocessor(tokenizer=tokenizer, label_length=40).labels(texts)
    assert labels.shape == (3, 40) and texts_of_labels(labels, tokenizer) == texts
    assert texts_of_labels([[99, 257, 0]], ByteTokenizer()) == ["a\ufffd"]


def test_transcription_is_read_off_the_logits(model):
    sound = noise(1)
    logits = np.asarray(model(model.preprocessor(sound[None])))[0]
    letters = [chr(label - 2) for label in read_off(logits)]
    (text,) = model.transcribe(sound[None])
    assert text == "".join(letters) and len(text) > 3


def test_sounds_padded_together_are_written_down_as_each_alone(model):
    sounds = [encode_wav(noise(seconds, seed), 16_000) for seed, seconds in enumerate((1, 0.3, 2))]
    together = model.transcribe([*sounds, b""])
    assert together == [*(model.transcribe([sound])[0] for sound in sounds), ""]
    assert len(set(together)) == 4
    close(model.logits_of_sounds(sounds[1:2])[0, :8], model.logits_of_sounds(sounds)[1, :8], 1e-4)


def test_lengths_are_rounded_up_for_few_programs(model):
    lengths = {model.logits_of_sounds(noise(x)[None]).shape[1] for x in (0.01, 1, 2.56, 2.57)}
    assert lengths == {64, 128}


def test_no_sound(model):
    assert model.transcribe(np.zeros([1, 0], "float32")) == model.transcribe([b""]) == [""]
    assert model.transcribe([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["sentence_piece"], indirect=True)
def test_a_file_and_a_preset_keep_the_model(tokenizer, tmp_path):
    preprocessor = make_preprocessor(tokenizer=tokenizer, sequence_length=20, label_length=5)
    backbone = make_backbone(vocabulary_size=tokenizer.vocabulary_size(), dtype="mixed_bfloat16")
    model = models.RoutingTransformerSpeechRecognizer(backbone, preprocessor)
    sound = noise(0.5)[None]
    x, _ = preprocessor(sound, ["the fox"])
    # The logits are of float32 in mixed precision too.
    assert model(x).dtype == tf.float32
    loaded = checks.check_files(model, lambda copy: copy(x), tmp_path)
    found, y = loaded.preprocessor(sound, ["the fox"])
    close(found["features"], x["features"], 1e-6)
    assert y.shape == (1, 5) and loaded.preprocessor.sequence_length == 20


def test_without_a_preprocessor():
    model = models.RoutingTransformerSpeechRecognizer(make_backbone())
    assert model(make_preprocessor()(noise(0.5)[None])).shape == (1, 13, 258)
    with pytest.raises(ValueError, match="must have a preprocessor to transcribe sounds"):
        model.transcribe(noise(0.5)[None])


def test_wrong_arguments(model):
    make = models.RoutingTransformerSpeechRecognizer
    encoder = checks.make_backbone(models.RoutingTransformerEncoderBackbone)
    with pytest.raises(TypeError, match="must be a RoutingTransformerSpeechBackbone. .*: a R"):
        make(encoder)
    with pytest.raises(ValueError, match="at least the 258 tokens of the preprocessor.*size=257"):
        make(make_backbone(vocabulary_size=257), make_preprocessor())
    with pytest.raises(ValueError, match="must have the 7 features .* num_mel_bins=6"):
        make(make_backbone(), make_preprocessor(7))
    with pytest.raises(ValueError, match="beam_width must be a positive integer"):
        model.transcribe(noise(0.5)[None], beam_width=0)


@pytest.mark.slow
def test_a_sound_longer_than_in_training_is_heard_in_windows():
    model = make_model(preprocessor=make_preprocessor(sequence_length=16))
    sound = np.random.default_rng(0).normal(size=[1, 30 * 640]).astype("float32")
    found = model.logits_of_sounds(sound)
    # The first window, and the one that starts 12 positions later, share 2 on each side.
    for start, first, last in ((0, 0, 14), (12, 14, 26)):
        alone = model.logits_of_sounds(sound[:, start * 640 : (start + 16) * 640])
        expected = alone[:, first - start : last - start]
        np.testing.assert_allclose(found[:, first:last], expected, rtol=0, atol=1e-4)
    assert found.shape[1] >= 30 and len(model.transcribe(sound)) == 1


@pytest.mark.parametrize(
    "sound",
    [np.zeros([1, 640], "int16"), np.zeros([1, 640, 2]), encode_wav(noise(1), 16_000)],
    ids=["integers", "two channels", "a file"],
)
def test_sounds_of_another_type_or_shape(model, sound):
    message = r"x must be strings \[batch\], the bytes of WAV files, or"
    with pytest.raises(ValueError, match=message):
        model.transcribe(sound)
