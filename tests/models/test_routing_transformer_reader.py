import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import layers, models
from rt_keras.data import ByteTokenizer
from rt_keras.training import experiment
from tests.models import checks

PASSAGES = ["The sky is blue.", "Grass, é, grows."]
QUESTIONS = ["why?", "is it so, or not", "é"]
HEADS = {
    "nearest": [layers.RoutingHeads(1, 3, 4), layers.LocalHeads(1, 4)],
    "other heads": [
        layers.LocalRoutingHeads(1, block_size=4, num_clusters=3, window_size=4),
        layers.LocalHeads(1, 4, max_relative_distance=3),
        layers.FullHeads(2),
    ],
}


def make_model(kind="nearest", dtype="float32", **lengths):
    backbone = checks.make_backbone(
        vocabulary_size=258, head_groups=HEADS[kind], num_layers=1, dtype=dtype
    )
    # Uneven probabilities, so that each token has a few likely successors.
    for weight in backbone.trainable_weights:
        weight.assign(weight * 3.0)
    lengths = {
        "num_passages": 3,
        "passage_length": 12,
        "question_length": 16,
        "answer_length": 12,
        **lengths,
    }
    preprocessor = models.RoutingTransformerReaderPreprocessor(ByteTokenizer(), **lengths)
    model = models.RoutingTransformerReader(backbone, preprocessor)
    model.compile(sampler="greedy", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def answers(model):
    return answers_of(model)


def answer_of(model, question, passages=PASSAGES):
    """The answer of `generate` with at most `answer_length` tokens."""
    preprocessor, x = model.preprocessor, {"question": question, "passages": passages}
    prompt = preprocessor.generate_preprocess({name: [value] for name, value in x.items()})
    known = int(np.sum(prompt["padding_mask"]))
    return model.generate(x, max_length=known + preprocessor.answer_length)


def answers_of(model):
    """The answers to all questions from the same passages."""
    return [answer_of(model, question) for question in QUESTIONS]


def streamed(model, read, question, *arguments):
    chunks = list(model.stream_answer(question, read, *arguments))
    assert all(chunks)
    return "".join(chunks)


# === Answers ===


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_answers_from_read_passages_are_those_of_generate(kind):
    model = make_model(kind)
    expected = answers_of(model)
    assert all(expected)
    read = model.read_passages(PASSAGES)
    before = [np.array(x) for x in tf.nest.flatten(read.cache)]
    # The order of the questions has no effect.
    for place in (0, 2, 1, 0):
        assert streamed(model, read, QUESTIONS[place]) == expected[place]
    for values, kept in zip(tf.nest.flatten(read.cache), before, strict=True):
        np.testing.assert_array_equal(values, kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("passages", "question"),
    [([], "q"), (["a" * 20, "b" * 20, "c" * 20], "q" * 16)],
    ids=["none", "full"],
)
def test_answers_are_equal_for_any_number_of_passages(model, passages, question):
    whole = answer_of(model, question, passages)
    assert streamed(model, model.read_passages(passages), question) == whole


@pytest.mark.slow
def test_a_long_question_has_a_place_after_full_passages():
    # The question fills a whole bucket of lengths, and the cache has no place for all of it.
    model = make_model(num_passages=1, passage_length=100, question_length=70, answer_length=4)
    passages, question = ["p" * 100], "".join(chr(97 + i % 26) for i in range(70))
    whole = answer_of(model, question, passages)
    assert streamed(model, model.read_passages(passages), question) == whole


@pytest.mark.slow
def test_questions_are_answered_in_a_batch(model):
    passages = [PASSAGES, ["a", ""], ["", ""]]
    whole = model.generate({"question": QUESTIONS, "passages": passages})
    for place, answer in enumerate(whole):
        asked = {"question": QUESTIONS[place], "passages": passages[place]}
        assert model.generate(asked) == answer
        # It may be longer than a streamed answer, if the passages leave places.
        start = streamed(model, model.read_passages(passages[place]), QUESTIONS[place])
        assert answer.startswith(start.rstrip("\ufffd"))


@pytest.mark.weekly
def test_xla_answers_equally(answers):
    model = make_model()
    model.compile(sampler="greedy", jit_compile=True)
    assert answers_of(model) == answers
    read = model.read_passages(PASSAGES)
    assert [streamed(model, read, question) for question in QUESTIONS] == answers


def test_an_answer_has_at_most_its_length(model):
    read, long = model.read_passages(PASSAGES), streamed(model, model.read_passages(PASSAGES), "q")
    assert streamed(model, read, "q", 10**6) == long
    for length in (1, 5):
        short = streamed(model, read, "q", length)
        # A token is a byte, and incomplete characters are replaced.
        assert len(short) <= length and long.startswith(short.rstrip("\ufffd"))


@pytest.mark.slow
def test_an_answer_ends_at_the_end_of_text(model):
    class Recites(keras_hub.samplers.Sampler):
        def __init__(self):
            super().__init__()
            self.tokens = keras.ops.array([*b"\x63\xc5\xab", 1, 99, 99, 99, 99, 99, 99, 99, 99])
            self.place = keras.Variable(0, dtype="int32", trainable=False)

        def get_next_token(self, probabilities):
            token = keras.ops.take(self.tokens, self.place)
            self.place.assign_add(1)
            return token[None]

    model = make_model()
    read = model.read_passages(PASSAGES)
    model.compile(sampler=Recites(), jit_compile=False)
    # Tokens of bytes are two more than the bytes.
    assert streamed(model, read, "q") == "aé"


# === Wrong use ===


def test_wrong_questions_passages_and_lengths_are_refused(model):
    read = model.read_passages(PASSAGES)
    for question, message in [
        (" ", "question must not be empty"),
        ("q" * 17, "question must have at most 16 tokens, question_length. Received: 17 tokens"),
    ]:
        with pytest.raises(ValueError, match=message):
            next(model.stream_answer(question, read))
        with pytest.raises(ValueError, match=message):
            model.generate({"question": ["fine", question], "passages": [["a"], ["b"]]})
    message = "passages must be at most 3, num_passages. Received: 4"
    with pytest.raises(ValueError, match=message):
        model.read_passages(["a"] * 4)
    with pytest.raises(ValueError, match=message):
        model.generate({"question": "q", "passages": ["a"] * 4})
    # No place for the answer.
    with pytest.raises(ValueError, match="max_length"):
        model.generate({"question": "q", "passages": PASSAGES}, max_length=10)


@pytest.mark.slow
def test_samplers_and_heads_that_cannot_stream_are_refused():
    model = make_model()
    read = model.read_passages(PASSAGES)
    model.compile(sampler="beam")
    with pytest.raises(ValueError, match="must choose one token at a time"):
        next(model.stream_answer("q", read))
    groups = [layers.RoutingHeads(1, 3, 4, assignment="balanced")]
    backbone = checks.make_backbone(vocabulary_size=258, head_groups=groups, num_layers=1)
    preprocessor = models.RoutingTransformerReaderPreprocessor(ByteTokenizer(), 1, 4, 4, 4)
    model = models.RoutingTransformerReader(backbone, preprocessor)
    with pytest.raises(ValueError, match="heads that decode with a cache"):
        model.read_passages(["a"])


# === Training and files ===

EXAMPLES = {
    "question": ["a?", "b?"],
    "passages": [["a is A", "x"], ["b is BC", "y"]],
    "answer": ["A", "BC"],
}


@pytest.mark.slow
def test_the_loss_is_that_of_the_answers_alone_and_falls(model):
    model = make_model()
    nats = keras.metrics.SparseCategoricalCrossentropy("nats", from_logits=True)
    model.compile(weighted_metrics=[nats], run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices(EXAMPLES).batch(2)
    scores = model.evaluate(data, verbose=0, return_dict=True)
    inputs, labels, weights = model.preprocessor(EXAMPLES)
    logits = np.asarray(model(inputs), "float64")
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    real = np.asarray(weights)
    each = -np.take_along_axis(logs, np.asarray(labels)[..., None], axis=-1)[..., 0]
    # Answers of 1 and 2 tokens, with their ends.
    assert real.sum() == 2 + 3
    assert scores["nats"] == pytest.approx(each[real].mean(), rel=1e-4)
    other = {**EXAMPLES, "answer": ["Z", "BC"]}
    data = tf.data.Dataset.from_tensor_slices(other).batch(2)
    assert model.evaluate(data, verbose=0, return_dict=True)["nats"] != scores["nats"]
    model.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    checks.check_fit(model, data)


def test_a_file_and_a_preset_keep_the_model(model, tmp_path):
    inputs, _, _ = model.preprocessor(EXAMPLES)
    checks.check_files(model, lambda copy: copy(inputs), tmp_path)
    loaded = experiment.load_model(tmp_path / "preset")
    assert type(loaded) is type(model) and type(loaded.preprocessor) is type(model.preprocessor)
    assert loaded.preprocessor.get_config() == model.preprocessor.get_config()


def test_classes_of_kerashub_find_the_language_model(model, tmp_path):
    """Not the reader, which has the same backbone."""
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), 16)
    models.RoutingTransformerCausalLM(model.backbone, preprocessor).save_to_preset(str(tmp_path))
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path))
    assert type(loaded) is models.RoutingTransformerCausalLM
    assert type(loaded.preprocessor) is type(preprocessor)
    with pytest.raises(ValueError, match="preset must hold a RoutingTransformerReader"):
        models.RoutingTransformerReader.from_preset(str(tmp_path))
