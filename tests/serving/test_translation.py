import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import cli
from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalRoutingHeads
from rt_keras.models import (
    RoutingTransformerSeq2SeqBackbone,
    RoutingTransformerSeq2SeqLM,
    RoutingTransformerSeq2SeqLMPreprocessor,
)
from rt_keras.serving import export_saved_model, translating_function

pytestmark = pytest.mark.end_to_end

TEXTS = ["", "a", "the café", "once upon a time"]
samplers = keras_hub.samplers


@pytest.fixture(scope="module")
def model():
    tokenizer = ByteTokenizer()
    routing = LocalRoutingHeads(2, num_clusters=2, window_size=8, block_size=4)
    backbone = RoutingTransformerSeq2SeqBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_encoder_layers=1,
        num_layers=1,
        hidden_dim=16,
        intermediate_dim=16,
        encoder_head_groups=[FullHeads(2)],
        head_groups=[routing],
        cross_head_groups=[FullHeads(2)],
    )
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(tokenizer, 24, 24)
    made = RoutingTransformerSeq2SeqLM(backbone, preprocessor)
    made.compile(sampler="greedy", jit_compile=False)
    return made


@pytest.mark.parametrize(
    ("sampler", "parameters"),
    [
        (lambda: samplers.TopKSampler(1, seed=3), {"top_k": 1, "seed": 3}),
        (
            lambda: samplers.RandomSampler(temperature=0.7, seed=5),
            {"temperature": 0.7, "seed": 5},
        ),
    ],
)
def test_translations_are_those_of_the_model(model, sampler, parameters):
    translate = translating_function(model, max_length=24)
    given = {
        "texts": tf.constant(TEXTS),
        "max_new_tokens": tf.constant(12),
        **{name: tf.constant(value) for name, value in parameters.items() if name != "seed"},
        "seed": tf.constant(parameters["seed"], tf.int64),
    }
    found = [text.decode() for text in translate(**given)["translations"].numpy()]
    expected = []
    for text in TEXTS:
        model.compile(sampler=sampler(), jit_compile=False)
        # One token more for the end of text before a translation.
        expected.append(model.generate([text], max_length=13)[0])
    assert found == expected
    assert len(set(found)) > 1


def test_the_command_writes_a_saved_model_that_gives_the_same(model, tmp_path, capsys):
    model.save_to_preset(tmp_path / "model")
    output = tmp_path / "served"
    assert cli.main(["export", "--model", str(tmp_path / "model"), "--output", str(output)]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("/1: translate")
    served = tf.saved_model.load(str(output / "1"))
    given = {"texts": tf.constant(TEXTS), "top_k": tf.constant(1), "max_new_tokens": tf.constant(9)}
    found = served.translate(**given)["translations"]
    expected = translating_function(model, max_length=24)(**given)["translations"]
    np.testing.assert_array_equal(found, expected)
    assert (output / "1" / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 0
    # No text, no translation.
    assert served.translate(tf.constant([], tf.string))["translations"].shape == [0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": ["a" * 23]}, "texts: it must have at most 24 tokens"),
        ({"texts": ["a"], "max_new_tokens": 24}, "max_new_tokens: it exceeds the limit"),
        ({"texts": ["a"], "temperature": 0.0}, "temperature: "),
        ({"texts": ["a", "b"], "top_k": [1, 2, 3]}, "top_k: it must be a scalar or one for each"),
    ],
)
def test_wrong_requests_are_refused(model, given, message):
    given = {name: tf.constant(x) for name, x in {"max_new_tokens": 3, **given}.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        translating_function(model, max_length=24)(**given)


def test_versions_are_counted(model, tmp_path):
    assert export_saved_model(model, tmp_path).name == "1"
    assert export_saved_model(model, tmp_path).name == "2"
