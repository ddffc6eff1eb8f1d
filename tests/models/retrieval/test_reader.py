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
LENGTHS = {"num_passages": 3, "passage_length": 12, "question_length": 16, "answer_length": 12}
QUESTIONS = ["why?", "is it so, or not", "é"]
HEADS = [layers.RoutingHeads(1, 3, 4), layers.LocalHeads(1, 4), layers.FullHeads(2)]


def make_model(**lengths):
    backbone = checks.make_backbone(vocabulary_size=258, head_groups=HEADS, num_layers=1)
    # Uneven probabilities, so that each token has a few likely successors.
    for weight in backbone.trainable_weights:
        weight.assign(weight * 3.0)
    preprocessor = models.RoutingTransformerReaderPreprocessor(ByteTokenizer(), **LENGTHS | lengths)
    model = models.RoutingTransformerReader(backbone, preprocessor)
    model.compile(sampler="greedy", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def answer_of(model, question, passages=PASSAGES):
    """The answer of `generate` with at most `answer_length` tokens."""
    preprocessor, x = model.preprocessor, {"question": question, "passages": passages}
    prompt = preprocessor.generate_preprocess({name: [value] for name, value in x.items()})
    known = int(np.sum(prompt["padding_mask"]))
    return model.generate(x, max_length=known + preprocessor.answer_length)


def streamed(model, read, question, *arguments):
    chunks = list(model.stream_answer(question, read, *arguments))
    assert all(chunks)
    return "".join(chunks)


# === Answers ===


@pytest.mark.slow
def test_answers_from_read_passages_are_those_of_generate(model):
    expected = [answer_of(model, question) for question in QUESTIONS]
    assert all(expected)
    read = model.read_passages(PASSAGES)
    before = [np.array(x) for x in tf.nest.flatten(read.cache)]
    # The order of the questions has no effect.
    for place in (0, 2, 1, 0):
        assert streamed(model, read, QUESTIONS[place]) == expected[place]
    checks.same(read.cache, before)
    assert streamed(model, model.read_passages([]), "q") == answer_of(model, "q", [])


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


def test_an_answer_has_at_most_its_length(model):
    read, long = model.read_passages(PASSAGES), streamed(model, model.read_passages(PASSAGES), "q")
    assert streamed(model, read, "q", 10**6) == long
    for length in (1, 5):
        short = streamed(model, read, "q", length)
        # A token is a byte, and incomplete characters are replaced.
        assert len(short) <= length and long.startswith(short.rstrip("\ufffd"))


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
    asked = {"question": "q", "passages": ["a"] * 4}
    for use in (lambda: model.read_passages(asked["passages"]), lambda: model.generate(asked)):
        with pytest.raises(ValueError, match="passages must be at most 3, num_passages. .*: 4"):
            use()
    # No place for the answer.
    with pytest.raises(ValueError, match="max_length"):
        model.generate({"question": "q", "passages": PASSAGES}, max_length=10)


def test_heads_that_cannot_stream_are_refused():
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
def test_training_on_texts_lowers_the_loss():
    model = make_model()
    model.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    checks.check_fit(model, tf.data.Dataset.from_tensor_slices(EXAMPLES).batch(2))


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
