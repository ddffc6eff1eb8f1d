import concurrent.futures

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.serving import generating_function, text_scoring_function
from rt_keras.training.evaluation import evaluate
from tests.serving import served

pytestmark = pytest.mark.end_to_end

samplers = keras_hub.samplers
PROMPTS = ["", "a", "once upon", "the café"]
# KerasHub's samplers, and the equivalent parameters of `generate`.
EQUAL = [
    (samplers.RandomSampler, {"temperature": 0.7, "seed": 5}, {}),
    (samplers.RandomSampler, {"seed": 2**40 + 3}, {}),
    (samplers.TopKSampler, {"k": 4, "temperature": 1.3, "seed": 6}, {"top_k": 4}),
    (samplers.TopKSampler, {"k": 1, "seed": 6}, {"top_k": 1}),
    (samplers.TopPSampler, {"p": 0.6, "seed": -7}, {"top_p": 0.6}),
    (samplers.TopPSampler, {"p": 0.9, "k": 9, "seed": 8}, {"top_p": 0.9, "top_k": 9}),
]


def parameters_of(options, parameters):
    shared = {name: options[name] for name in ("temperature", "seed") if name in options}
    return {**shared, **parameters}


def expected_text(model, sampler, prompt, jit_compile, max_new_tokens=12):
    model.compile(sampler=sampler, jit_compile=jit_compile)
    length = 1 + len(prompt.encode()) + max_new_tokens
    return model.generate(prompt, max_length=length)


@pytest.mark.parametrize("sampler, options, parameters", EQUAL)
def test_texts_are_those_of_the_model(sampler, options, parameters):
    # Other prompts of different lengths in the batch change nothing.
    found = served.texts(prompts=PROMPTS, **parameters_of(options, parameters))
    prompt = PROMPTS[options["seed"] % 4]
    expected = expected_text(served.model(), sampler(**options), prompt, jit_compile=False)
    assert found[PROMPTS.index(prompt)] == expected


def test_texts_are_those_of_a_model_that_xla_compiles_as_by_default():
    model = served.make_model()
    model.compile(sampler="random")
    generate = generating_function(model)
    for sampler, options, parameters in EQUAL[:3:2] + EQUAL[4:5]:
        inputs = {"prompts": PROMPTS[1:3], **parameters_of(options, parameters)}
        found = generate(**served.tensors("generate", inputs))["texts"].numpy()
        expected = expected_text(model, sampler(**options), PROMPTS[2], jit_compile="auto")
        assert found[1].decode() == expected


def test_a_prompt_s_text_depends_on_its_own_parameters_alone():
    parameters = {
        "max_new_tokens": [3, 20, 9, 12],
        "temperature": [0.5, 1.0, 2.0, 1.0],
        "top_p": [1.0, 0.7, 1.0, 0.9],
        "top_k": [0, 0, 5, 7],
        "seed": [1, 2, 3, 4],
    }
    together = served.texts(prompts=PROMPTS, **parameters)
    for row, prompt in enumerate(PROMPTS):
        own = {name: values[row] for name, values in parameters.items()}
        assert served.texts(prompts=[prompt], **own) == [together[row]]


def test_seeds_matter_and_draws_repeat():
    first, again, other = (served.texts(prompts=["a"], seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_texts_are_prompts_and_continuations():
    answer = served.ask("generate", prompts=["once ", ""], top_k=3)
    texts, continuations = answer["texts"].tolist(), answer["continuations"].tolist()
    assert texts == [b"once " + continuations[0], continuations[1]]


def test_what_follows_the_end_of_text_is_left_out_and_so_may_parameters_be(monkeypatch):
    model = served.make_model()
    monkeypatch.setattr(model, "token_logits", _surely_the_end)
    answer = generating_function(model)(tf.constant(["once"]))
    assert answer["texts"].numpy().tolist() == [b"once"]
    assert answer["continuations"].numpy().tolist() == [b""]


def _surely_the_end(hidden):
    shape = tf.concat([tf.shape(hidden)[:-1], [258]], axis=0)
    return tf.broadcast_to(1e3 * tf.one_hot(1, 258), shape)


def test_prompts_of_bytes_are_taken_and_texts_are_utf8():
    (text,) = served.ask("generate", prompts=[b"\xff\xfea"], max_new_tokens=40)["texts"]
    assert text.decode().startswith("\ufffd\ufffda")


def test_scores_of_texts_are_those_of_their_ids():
    texts = ["", "a", "the café opens"]
    answer = served.ask("score_text", texts=texts)
    for row, text in enumerate(texts):
        ids = [*data.ByteTokenizer()(text).numpy().tolist(), 1]
        nats = served.ask("score", ids=[ids])["log_probabilities"].sum()
        assert answer["log_probability"][row] == pytest.approx(nats, rel=1e-5)
        assert answer["tokens"][row] == len(text.encode()) + 1
        bits = -nats / np.log(2) / len(text.encode()) if text else 0
        assert answer["bits_per_byte"][row] == pytest.approx(bits, rel=1e-5)


def test_scores_of_texts_are_those_of_evaluation():
    text = "the café opens"
    scores = evaluate(served.model(), tf.data.Dataset.from_tensors(text.encode()))
    answer = served.ask("score_text", texts=[text])
    assert answer["bits_per_byte"][0] == pytest.approx(scores["bits_per_byte"], rel=1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_no_ids_have_no_scores(shape):
    assert served.ask("score", ids=np.zeros(shape))["log_probabilities"].shape == shape


def test_no_texts_have_no_scores():
    answer = served.ask("score_text", texts=np.array([], "S"))
    assert {name: value.tolist() for name, value in answer.items()} == {
        "log_probability": [],
        "bits_per_byte": [],
        "tokens": [],
    }


@pytest.mark.parametrize("temperature", [1.0, []])
def test_no_prompts_have_no_texts(temperature):
    answer = served.ask("generate", prompts=np.array([], "S"), temperature=temperature)
    assert {name: value.tolist() for name, value in answer.items()} == {
        "texts": [],
        "continuations": [],
    }


@pytest.mark.parametrize("case", served.BAD_REQUESTS)
def test_a_bad_input_is_named(case):
    signature, inputs, name = served.BAD_REQUESTS[case]
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match=rf"\b{name}\b"):
        served.ask(signature, **inputs)
    assert served.ask("score", ids=[[5]])["log_probabilities"].shape == (1, 1)


@pytest.mark.parametrize("name", served.TYPES)
def test_a_wrong_type_is_named(name):
    signatures = {"rows": "new_state", "ids": "score", "texts": "score_text"}
    signature = signatures.get(name, "generate")
    inputs = {"ids": [[5]], "texts": ["a"], "prompts": ["a"]}.get(name, 1)
    others = {} if signature != "generate" else {"prompts": ["a"]}
    values = served.tensors(signature, {**others, name: inputs})
    values[name] = tf.zeros([1], tf.float64)
    with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
        getattr(served.loaded(), signature)(**values)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a"):
        served.loaded().signatures[signature](**values)


def test_tokenizers_of_words_say_that_bytes_are_no_text(word_piece_vocabulary):
    model = served.make_model(data.WordPieceTokenizer(word_piece_vocabulary))
    function = text_scoring_function(model)
    assert function(tf.constant(["the fox"]))["tokens"].numpy().tolist() == [3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="texts: it must be valid UTF-8"):
        function(tf.constant([b"the fox", b"\xff"]))


def test_eight_threads_get_what_one_gets():
    requests = [
        {"prompts": [PROMPTS[n % 4] * (1 + n % 3)], "max_new_tokens": 4 + 3 * (n % 5), "seed": n}
        for n in range(24)
    ]
    expected = [served.texts(**request) for request in requests]
    scores = [served.ask("score_text", texts=text)["log_probability"] for text in expected]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda request: served.texts(**request), requests * 2)
        found_scores = pool.map(
            lambda text: served.ask("score_text", texts=text)["log_probability"], expected * 2
        )
        assert list(found) == expected * 2
        np.testing.assert_allclose(list(found_scores), scores * 2, rtol=1e-6)
