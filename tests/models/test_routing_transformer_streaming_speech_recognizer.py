import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras import models
from rt_keras.data import ByteTokenizer, SentencePieceTokenizer
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models.routing_transformer_speech_recognizer import decode_labels, texts_of_labels
from tests.layers.checks import close
from tests.models import checks

BINS = 6
HEADS = {
    "full": lambda: [FullHeads(2)],
    "local": lambda: [LocalHeads(2, 4)],
    "nearest": lambda: [RoutingHeads(2, 2, 8, assignment="nearest")],
}


def make_preprocessor(tokenizer=None, normalization="fixed", **lengths):
    converter = models.RoutingTransformerAudioConverter(BINS, normalization)
    return models.RoutingTransformerSpeechRecognizerPreprocessor(
        tokenizer or ByteTokenizer(), converter, **lengths
    )


def make_backbone(cls=models.RoutingTransformerStreamingSpeechBackbone, **changes):
    return checks.make_backbone(
        cls, **{"vocabulary_size": 258, "num_mel_bins": BINS, "num_layers": 1, **changes}
    )


def make_model(kind="local", preprocessor=None, **changes):
    """A model whose likeliest classes are the blank and tokens of one or more letters."""
    preprocessor = preprocessor or make_preprocessor()
    size = preprocessor.tokenizer.vocabulary_size()
    backbone = make_backbone(head_groups=HEADS[kind](), vocabulary_size=size, **changes)
    model = models.RoutingTransformerStreamingSpeechRecognizer(backbone, preprocessor)
    kernel = np.random.default_rng(1).normal(size=model.output_dense.kernel.shape)
    model.output_dense.kernel.assign(kernel)
    if size == 258:
        # Of all bytes, the small letters.
        letters = np.isin(np.arange(258), [0, *range(ord("a") + 2, ord("z") + 3)])
        model.output_dense.bias.assign(np.where(letters, 0.0, -100.0))
    # Without XLA, whose compilation takes seconds.
    model.compile(jit_compile=False)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def tones(samples, seed=0):
    """A tone of another frequency and loudness every 40 ms."""
    rng = np.random.default_rng(seed)
    count = -(-samples // 640)
    hertz, loudness = rng.uniform(50, 7000, count), 10 ** rng.uniform(-3, 0, count)
    times = np.arange(640) / 16_000
    sound = loudness[:, None] * np.sin(2 * np.pi * hertz[:, None] * times)
    return sound.reshape(-1)[:samples].astype("float32")


def chunks_of(sound, sizes):
    """Cuts a sound into chunks of these sizes, and what is left."""
    ends = np.cumsum(sizes)
    return np.split(sound, ends[ends < len(sound)])


def logits_of_stream(model, chunks):
    return np.concatenate(list(model.stream_logits(chunks, max_seconds=1)))


@pytest.mark.parametrize("kind", HEADS)
def test_logits_of_a_stream_are_those_of_the_whole_sound(kind):
    model, sound = make_model(kind), tones(12_345)
    expected = np.asarray(model(model.preprocessor(sound[None])))[0]
    assert expected.shape == (20, 258)
    found = logits_of_stream(model, [sound[:5000], sound[5000:5001], sound[5001:]])
    close(found, expected, 1e-4)


@settings(max_examples=10)
@given(samples=st.integers(1, 12_000), sizes=st.lists(st.integers(0, 9000), max_size=5))
def test_any_chunks_give_what_the_whole_sound_gives(model, samples, sizes):
    sound = tones(samples, seed=samples)
    logits = logits_of_stream(model, chunks_of(sound, sizes))
    close(logits, np.asarray(model(model.preprocessor(sound[None])))[0], 1e-4)
    # Of the same logits, so that no two classes can change places.
    texts = list(model.stream(chunks_of(sound, sizes), max_seconds=1))
    (expected,) = texts_of_labels(decode_labels(logits[None]), model.preprocessor.tokenizer)
    assert all(texts) and "".join(texts) == expected


# The last frames of a sound, at the ends of frames, positions and steps of eight positions.
@pytest.mark.parametrize("samples", [1, 160, 161, 640, 641, 5120, 5121, 5360, 5361, 10_240])
def test_every_end_of_a_sound(model, samples):
    sound = tones(samples)
    expected = np.asarray(model(model.preprocessor(sound[None])))[0]
    close(logits_of_stream(model, [sound]), expected, 1e-4)
    assert len(expected) == -(-samples // 640)


def test_logits_come_as_soon_as_they_are_known(model):
    sound = tones(16_000)
    given = []

    def chunks():
        for start in range(0, 16_000, 1000):
            given.append(start + 1000)
            yield sound[start : start + 1000]

    # Eight positions have 32 frames, the last of which ends at sample 5,360.
    heard = [(given[-1], len(logits)) for logits in model.stream_logits(chunks())]
    assert heard == [(6000, 8), (11_000, 8), (16_000, 8), (16_000, 1)]


@pytest.mark.parametrize("sentence_piece", [False, True])
def test_a_stream_is_the_transcription(sentence_piece, sentence_piece_model):
    tokenizer = SentencePieceTokenizer(sentence_piece_model) if sentence_piece else None
    model, sound = make_model(preprocessor=make_preprocessor(tokenizer)), tones(12_000)
    texts = list(model.stream(np.split(sound, 4)))
    assert "".join(texts) == model.transcribe(sound[None])[0]
    # 19 positions; a chunk of subwords ends with a whole word.
    assert len("".join(texts)) > 5 and (sentence_piece or len(texts) > 1)


def test_a_sound_may_be_longer_than_the_sequences_of_training():
    model, sound = make_model(preprocessor=make_preprocessor(sequence_length=4)), tones(6400)
    text = "".join(model.stream([sound]))
    assert model.transcribe(sound[None]) == [text] != model.transcribe(sound[None, : 4 * 640])


def test_no_sound(model):
    for chunks in ([], [np.zeros(0, "float32")]):
        assert list(model.stream(chunks)) == [] and list(model.stream_logits(chunks)) == []


def test_samples_of_other_types(model):
    sound = tones(6000)
    expected = list(model.stream([sound]))
    assert list(model.stream([sound.tolist()])) == expected
    assert list(model.stream([sound.astype("float64")[:, None]])) == expected


@pytest.mark.parametrize("chunk", [np.ones(640, "int16"), np.ones([640, 2])])
def test_chunks_of_integers_or_several_channels(model, chunk):
    with pytest.raises(
        ValueError, match=r"chunks must be floats \[samples\], from -1 to 1, of one"
    ):
        list(model.stream([chunk]))


def test_a_sound_that_is_too_long(model):
    sound = tones(3 * 5120)
    assert len(list(model.stream_logits([sound], max_seconds=0.96))) == 3
    with pytest.raises(ValueError, match="a sound must last at most max_seconds=0.6"):
        list(model.stream_logits([sound], max_seconds=0.6))


def test_a_stream_is_compiled_once(model, monkeypatch):
    model.compile(jit_compile=False)
    traces, call = [], model.backbone.call_with_cache
    monkeypatch.setattr(model.backbone, "call_with_cache", lambda *x: traces.append(1) or call(*x))
    for samples in (20_000, 7000):
        list(model.stream([tones(samples)]))
    assert traces == [1]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", HEADS)
def test_a_stream_compiled_by_xla(kind):
    model, sound = make_model(kind), tones(12_345)
    expected = np.asarray(model(model.preprocessor(sound[None])))[0]
    model.compile()
    close(logits_of_stream(model, [sound]), expected, 1e-4)


def test_a_file_and_a_preset_keep_the_model(model, tmp_path):
    sound = tones(6000)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(str(tmp_path / "preset"))
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        models.RoutingTransformerStreamingSpeechRecognizer.from_preset(str(tmp_path / "preset")),
    ):
        loaded.compile(jit_compile=False)
        assert type(loaded) is type(model)
        assert list(loaded.stream([sound])) == list(model.stream([sound]))


def test_features_that_depend_on_the_whole_sound_are_refused():
    with pytest.raises(ValueError, match="with normalization=\"fixed\".* Received: 'clip'"):
        make_model(preprocessor=make_preprocessor(normalization="clip"))


def test_a_bidirectional_backbone_is_refused():
    backbone = make_backbone(models.RoutingTransformerSpeechBackbone)
    make = models.RoutingTransformerStreamingSpeechRecognizer
    with pytest.raises(TypeError, match="must be a RoutingTransformerStreamingSpeechBackbone"):
        make(backbone, make_preprocessor())


def test_without_a_preprocessor():
    model = models.RoutingTransformerStreamingSpeechRecognizer(make_backbone())
    for write_down in (lambda: list(model.stream([tones(100)])), lambda: model.transcribe([b""])):
        with pytest.raises(ValueError, match="must have a preprocessor to transcribe sounds"):
            write_down()


def test_heads_that_cannot_decode():
    balanced = [RoutingHeads(2, 2, 8, assignment="balanced")]
    model = models.RoutingTransformerStreamingSpeechRecognizer(
        make_backbone(head_groups=balanced), make_preprocessor()
    )
    with pytest.raises(ValueError, match="cannot be decoded with a cache"):
        list(model.stream([tones(100)]))
