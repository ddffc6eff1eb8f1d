import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from rt_keras.models.routing_transformer_span_predictor import best_spans
from tests.models import checks

QUESTIONS = {"question": ["who?", "when is it"], "context": ["é was Ann, not Bo", "it is 9"]}
ANSWERS = {"answer": ["Ann", "9"], "answer_start": [6, 6]}


def preprocessor(length=32):
    return models.RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), length)


def make_model(**changes):
    backbone = checks.make_backbone(
        cls=models.RoutingTransformerEncoderBackbone, vocabulary_size=259, **changes
    )
    return models.RoutingTransformerSpanPredictor(backbone, preprocessor(), max_answer_length=5)


@pytest.fixture(scope="module")
def model():
    return make_model()


def test_answers_are_found_among_the_tokens_and_recovered():
    x, spans, weights = preprocessor()({**QUESTIONS, **ANSWERS})
    tokens = x["token_ids"].numpy()
    expected = [1, *(b + 2 for b in b"who?"), 1, *(b + 2 for b in "é was Ann, not Bo".encode()), 1]
    assert tokens[0, : len(expected)].tolist() == expected
    assert x["context_mask"].numpy()[0].nonzero()[0].tolist() == list(range(6, 24))
    assert spans.numpy().tolist() == [[13, 15], [18, 18]] and np.all(weights == 1)
    assert preprocessor().answers(QUESTIONS, spans) == ANSWERS["answer"]
    # No answer lies in the question, and none ends before it starts.
    assert preprocessor().answers(QUESTIONS, tf.constant([[0, 3], [18, 13]])) == ["", ""]


def test_a_truncated_answer_has_no_weight():
    for length, weight in ((17, 1.0), (16, 0.0), (6, 0.0)):
        x, spans, weights = preprocessor(length)({**QUESTIONS, **ANSWERS})
        assert x["token_ids"].shape == (2, length)
        assert weights.numpy()[0].tolist() == [weight, weight]
        assert np.all(spans.numpy() < length)


def test_any_tokenizer_finds_words(tokenizer):
    made = models.RoutingTransformerSpanPredictorPreprocessor(tokenizer, 48)
    x = {"question": ["the  dog"], "context": ["the quick fox jumps, the  dog jumps."]}
    _, spans, weights = made({**x, "answer": ["fox jumps"], "answer_start": [10]})
    assert np.all(weights == 1)
    (answer,) = made.answers(x, spans)
    assert answer.rstrip(",") == "fox jumps"


def test_spans_equal_those_of_an_exhaustive_search():
    logits = np.random.default_rng(0).normal(size=[20, 2, 9]).astype("float32")
    for longest in (1, 3, 20):
        for (start, end), found in zip(logits, best_spans(logits, longest).numpy()):
            spans = [(i, j) for i in range(9) for j in range(i, min(9, i + longest))]
            assert max(spans, key=lambda x: start[x[0]] + end[x[1]]) == tuple(found)


def test_positions_outside_the_context_have_no_probability(model):
    x = model.preprocessor(QUESTIONS)
    p = keras.ops.convert_to_numpy(keras.ops.softmax(model(x)))
    outside = ~np.asarray(x["context_mask"])
    assert p.shape == (2, 2, 32) and np.all(p[np.repeat(outside[:, None], 2, 1)] == 0)
    short = model.preprocessor({name: texts[1:] for name, texts in QUESTIONS.items()})
    assert checks.largest_difference(model(short), model(x)[1:]) <= 1e-5


@pytest.mark.end_to_end
def test_a_preset_and_a_file_hold_all_of_it(model, tmp_path):
    x = model.preprocessor(QUESTIONS)
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    for copy in (
        models.RoutingTransformerSpanPredictor.from_preset(str(tmp_path / "preset")),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert type(copy) is type(model) and copy.max_answer_length == 5
        assert checks.largest_difference(copy(x), model(x)) <= 1e-6
        assert copy.preprocessor.sequence_length == 32


@pytest.mark.end_to_end
def test_learns_to_answer_and_is_exported(tmp_path):
    model = make_model(head_groups=[LocalHeads(1, 16)], num_layers=1, sinusoidal_positions=True)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    many = {name: 60 * values for name, values in {**QUESTIONS, **ANSWERS}.items()}
    model.fit(many, batch_size=2, verbose=0)
    assert model.answer(QUESTIONS) == ANSWERS["answer"]
    model.export(tmp_path, verbose=False)
    call = keras.layers.TFSMLayer(tmp_path, call_endpoint="serve")
    x = {k: keras.ops.cast(v, "int32") for k, v in model.preprocessor(QUESTIONS).items()}
    assert checks.largest_difference(call(x), model(x)) <= 1e-3


def test_wrong_arguments_are_refused(model):
    with pytest.raises(ValueError, match="max_answer_length must be a positive integer"):
        models.RoutingTransformerSpanPredictor(model.backbone, max_answer_length=0)
    with pytest.raises(ValueError, match="needs a preprocessor. Received: preprocessor=None"):
        models.RoutingTransformerSpanPredictor(model.backbone).answer(QUESTIONS)
    with pytest.raises(ValueError, match="batches of strings, .* a context of shape \\(\\)"):
        preprocessor()({"question": "who?", "context": "Ann"})
    with pytest.raises(ValueError, match="sequence_length must be at least 1"):
        preprocessor(0)
