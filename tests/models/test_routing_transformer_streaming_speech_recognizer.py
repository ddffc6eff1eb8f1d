import numpy as np
import pytest

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from tests.layers.checks import close
from tests.models import checks


def make_model(normalization="fixed"):
    preprocessor = models.RoutingTransformerSpeechRecognizerPreprocessor(
        ByteTokenizer(), models.RoutingTransformerAudioConverter(6, normalization)
    )
    backbone = checks.make_backbone(
        models.RoutingTransformerStreamingSpeechBackbone,
        vocabulary_size=258,
        num_mel_bins=6,
        num_layers=1,
        head_groups=[LocalHeads(2, 4)],
    )
    model = models.RoutingTransformerStreamingSpeechRecognizer(backbone, preprocessor)
    model.output_dense.kernel.assign(np.random.default_rng(1).normal(size=[8, 258]))
    # Of all bytes, the small letters.
    letters = np.isin(np.arange(258), [0, *range(ord("a") + 2, ord("z") + 3)])
    model.output_dense.bias.assign(np.where(letters, 0.0, -100.0))
    model.compile(jit_compile=False)
    return model


@pytest.mark.slow
def test_a_stream_gives_what_the_whole_sound_gives(tmp_path):
    model = make_model()
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 12_345).astype("float32")
    for samples, ends in ((12_345, [5000, 5001]), (5121, []), (160, [0, 50])):
        chunks = np.split(sound[:samples], ends)
        expected = np.asarray(model(model.preprocessor(sound[None, :samples])))[0]
        close(np.concatenate(list(model.stream_logits(chunks, max_seconds=1))), expected, 1e-4)
    chunks = np.split(sound, 3)
    text = "".join(model.stream(chunks))
    assert model.transcribe(sound[None]) == [text] and len(text) > 2
    x = model.preprocessor(sound[None])
    checks.check_files(model, lambda copy: copy(x), tmp_path)


def test_features_that_depend_on_the_whole_sound_are_refused():
    with pytest.raises(ValueError, match="with normalization=\"fixed\".* Received: 'clip'"):
        make_model(normalization="clip")
