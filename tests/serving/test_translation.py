import contextlib
import io

import keras_hub
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalRoutingHeads
from rt_keras.models import RoutingTransformerSeq2SeqLM, RoutingTransformerSeq2SeqLMPreprocessor
from tests.models.seq_2_seq.test_seq_2_seq_lm import make_backbone
from tests.serving.served import by_command, check_refused

pytestmark = pytest.mark.slow

TEXTS = ["", "a", "the café", "once upon a time"]
samplers = keras_hub.samplers


@pytest.fixture(scope="module")
def model():
    routing = [LocalRoutingHeads(2, num_clusters=2, window_size=8, block_size=4)]
    backbone = make_backbone(head_groups=routing, cross_head_groups=[FullHeads(2)])
    preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 24, 24)
    made = RoutingTransformerSeq2SeqLM(backbone, preprocessor)
    made.compile(sampler="greedy", jit_compile=False)
    return made


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exported = by_command(model, folder, "--max-length", 24)
    assert shown.getvalue().splitlines()[0].endswith("/1: serving_default, translate")
    assert (exported.folder / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 0
    return exported


def test_translations_are_those_of_the_model(model, exported):
    translate = exported.loaded.translate
    # The likeliest ones, and those that XLA draws, as a loaded model does.
    for texts, sampler, jit_compile, parameters in (
        (TEXTS, samplers.TopKSampler(1, seed=3), False, {"top_k": 1}),
        (TEXTS[2:3], samplers.RandomSampler(temperature=0.7, seed=5), True, {"temperature": 0.7}),
    ):
        model.compile(sampler=sampler, jit_compile=jit_compile)
        # One token more for the end of text before a translation.
        expected = [model.generate([text], max_length=13)[0] for text in texts]
        given = {name: tf.constant(x) for name, x in {"max_new_tokens": 12, **parameters}.items()}
        seed = tf.constant(sampler.seed, tf.int64)
        found = translate(tf.constant(TEXTS), seed=seed, **given)["translations"].numpy()
        found = dict(zip(TEXTS, [text.decode() for text in found]))
        assert [found[text] for text in texts] == expected
        assert len(set(found.values())) > 1
    # No text, no translation.
    assert translate(tf.constant([], tf.string))["translations"].shape == [0]


def test_wrong_requests_are_refused(exported):
    cases = [
        ({"texts": ["a" * 23]}, "texts: it must have at most 24 tokens"),
        ({"max_new_tokens": 24}, "max_new_tokens: the tokens exceed the limit"),
        ({"temperature": 0.0}, "temperature: "),
    ]
    check_refused(exported.loaded.translate, cases, texts=["a"], max_new_tokens=3)
