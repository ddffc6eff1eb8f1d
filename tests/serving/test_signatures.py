import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.serving import generating_function
from rt_keras.training.evaluation import evaluate
from tests.serving.served import TYPES, make_model, model, tensors

pytestmark = pytest.mark.slow

samplers = keras_hub.samplers
PROMPTS = ["", "a", "once upon", "the café"]


def check_texts(ask, model, prompt, sampler, **parameters):
    """Asserts that a prompt among others gets the text that the model writes for it alone."""
    inputs = {**parameters, "temperature": sampler.temperature, "seed": sampler.seed}
    answer = ask(**tensors("generate", {"prompts": PROMPTS, **inputs}))["texts"].numpy()
    model.compile(sampler=sampler, jit_compile=model.jit_generate)
    length = 1 + len(prompt.encode()) + 12
    expected = model.generate(prompt, max_length=length)
    assert answer[PROMPTS.index(prompt)].decode() == expected


def test_texts_are_those_of_the_model(served):
    ask = served.loaded.signatures["generate"]
    largest = samplers.TopPSampler(p=0.8, k=9, temperature=1.3, seed=-(2**40))
    check_texts(ask, model(), "a", largest, top_p=0.8, top_k=9)


def test_texts_are_those_of_a_model_that_xla_compiles_as_by_default():
    compiled = make_model()
    compiled.compile(sampler="random")
    sampler = samplers.RandomSampler(temperature=0.7, seed=5)
    check_texts(generating_function(compiled), compiled, "once upon", sampler)


def test_texts_are_prompts_and_continuations_in_utf8(served):
    answer = served.ask("generate", prompts=["once ", "", b"\xff\xfea"], top_k=3)
    texts, continuations = answer["texts"].tolist(), answer["continuations"].tolist()
    assert texts[:2] == [b"once " + continuations[0], continuations[1]]
    assert texts[2].decode().startswith("\ufffd\ufffda")
    first, again, other = (served.texts(prompts=["a"], seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_what_follows_the_end_of_text_is_left_out_and_so_may_parameters_be(monkeypatch):
    model = make_model()
    monkeypatch.setattr(model, "token_logits", _surely_the_end)
    answer = generating_function(model)(tf.constant(["once"]))
    assert answer["texts"].numpy().tolist() == [b"once"]
    assert answer["continuations"].numpy().tolist() == [b""]


def _surely_the_end(hidden):
    shape = tf.concat([tf.shape(hidden)[:-1], [258]], axis=0)
    return tf.broadcast_to(1e3 * tf.one_hot(1, 258), shape)


def test_scores_of_texts_are_those_of_their_ids_and_of_evaluation(served):
    texts = ["", "a", "the café opens"]
    answer = served.ask("score_text", texts=texts)
    for row, text in enumerate(texts):
        ids = [*data.ByteTokenizer()(text).numpy().tolist(), 1]
        nats = served.ask("score", ids=[ids])["log_probabilities"].sum()
        assert answer["log_probability"][row] == pytest.approx(nats, rel=1e-5)
        assert answer["tokens"][row] == len(text.encode()) + 1
        bits = -nats / np.log(2) / len(text.encode()) if text else 0
        assert answer["bits_per_byte"][row] == pytest.approx(bits, rel=1e-5)
    scores = evaluate(model(), tf.data.Dataset.from_tensors(texts[2].encode()))
    assert answer["bits_per_byte"][2] == pytest.approx(scores["bits_per_byte"], rel=1e-5)


def test_nothing_gives_nothing(served):
    for shape in ((0, 5), (3, 0), (0, 0)):
        assert served.ask("score", ids=np.zeros(shape))["log_probabilities"].shape == shape
    nothing = np.array([], "S")
    answers = [served.ask("score_text", texts=nothing)]
    answers += [served.ask("generate", prompts=nothing, temperature=x) for x in (1.0, [])]
    assert all(value.shape == (0,) for answer in answers for value in answer.values())


def test_a_wrong_type_is_named(served):
    signatures = {"rows": "new_state", "ids": "score", "texts": "score_text"}
    given = {"rows": 1, "ids": [[5]], "texts": ["a"]}
    for name in TYPES:
        signature = signatures.get(name, "generate")
        inputs = {name: given[name]} if name in given else {"prompts": ["a"]}
        values = {**tensors(signature, inputs), name: tf.zeros([1], tf.float64)}
        with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
            getattr(served.loaded, signature)(**values)
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a"):
            served.loaded.signatures[signature](**values)
