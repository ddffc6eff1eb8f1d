import numpy as np
import pytest
import tensorflow as tf

from rt_keras.retrieval import ExactIndex, Index, read_index
from rt_keras.serving import export_saved_model
from rt_keras.serving.retrieval import answering_function
from rt_keras.training.experiment import load_model
from tests.retrieval.made import TEXTS
from tests.serving.served import Served, by_command, check_refused
from tests.serving.server import serving

pytestmark = pytest.mark.slow

QUESTIONS = ["is the sky blue?", "rusts gold?", "é"]
GREEDY = {"temperature": tf.constant(1e-6), "max_new_tokens": tf.constant(8)}


@pytest.fixture(scope="module")
def index(retrieval_folder):
    return read_index(retrieval_folder / "index")


@pytest.fixture(scope="module")
def reader(retrieval_folder):
    reader = load_model(retrieval_folder / "reader")
    reader.compile(sampler="greedy", jit_compile=False)
    return reader


@pytest.fixture(scope="module")
def exported(reader, retrieval_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    return by_command(reader, folder, "--index", retrieval_folder / "index")


def expected(reader, index, questions):
    """What `generate` answers to each question alone, of 8 tokens, and the passages."""
    answers, sources = [], []
    for question in questions:
        (found,) = index.search([question], 2)
        texts = [f"{x['title']}\n{x['text']}" for x in found]
        answers.append(reader.generate({"question": question, "passages": texts})[:8])
        sources.append([x["document"] for x in found])
    return answers, sources


def test_each_row_is_that_of_the_model_alone(reader, index, exported):
    answer = exported.loaded.answer
    found = {x: y.numpy() for x, y in answer(tf.constant(QUESTIONS), **GREEDY).items()}
    answers, sources = expected(reader, index, QUESTIONS)
    assert len(set(answers)) > 1
    assert [x.decode() for x in found["answers"]] == answers
    assert [[x.decode() for x in row] for row in found["sources"].tolist()] == sources
    assert found["passages"][0, 0].decode() in [x["text"] for x in index.passages]
    assert np.all(np.diff(found["scores"]) <= 0)
    found = answer(tf.constant([], tf.string), **GREEDY)
    assert found["answers"].shape == [0] and found["sources"].shape == [0, 2]
    # Tokens of bytes need no UTF-8.
    assert answer(tf.constant([b"\xff"]), **GREEDY)["answers"].shape == [1]


def test_an_index_may_have_fewer_passages_than_the_reader_reads(reader, index):
    passages = index.passages[:1]
    few = Index(index.retriever, passages, ExactIndex(index.vectors.vectors[:1]))
    found = answering_function(reader, few)(tf.constant(QUESTIONS), **GREEDY)
    text = f"{passages[0]['title']}\n{passages[0]['text']}"
    answers = [
        reader.generate({"question": question, "passages": [text, ""]})[:8]
        for question in QUESTIONS
    ]
    assert [x.decode() for x in found["answers"].numpy()] == answers
    assert found["sources"].shape == found["scores"].shape == [3, 1]


def test_wrong_requests_are_refused(exported):
    cases = [
        ({"questions": [" "]}, "questions: it must not be empty"),
        ({"questions": ["a" * 17]}, "questions: it must have at most 16 tokens"),
        ({"max_new_tokens": 9}, "max_new_tokens: it must be from 0 to 8"),
        ({"top_p": 0.0}, "top_p: it must be above 0"),
    ]
    check_refused(exported.loaded.answer, cases, questions=["who?"], **GREEDY)


def test_embeddings(index, tmp_path):
    retriever = index.retriever
    served = Served(export_saved_model(retriever, tmp_path / "retriever"))
    texts = ["abc", "", "a text that is longer than the sequences of the model"]
    found = served.ask("embed", texts=texts)["embeddings"]
    np.testing.assert_allclose(found, retriever.embed_texts(texts), atol=1e-6)
    assert served.ask("embed", texts=np.array([], "S"))["embeddings"].shape == (0, 8)


def test_what_needs_an_index(reader, index, tmp_path):
    with pytest.raises(ValueError, match="index is required for a RoutingTransformerReader"):
        export_saved_model(reader, tmp_path)
    with pytest.raises(ValueError, match="index must be None for a RoutingTransformerTextEmbedder"):
        export_saved_model(index.retriever, tmp_path, index=index)
    with pytest.raises(ValueError, match="max_length does not apply"):
        export_saved_model(reader, tmp_path, max_length=8, index=index)


@pytest.mark.weekly
def test_clients_print_the_answer_and_its_sources(exported, clients, capsys):
    found = exported.loaded.answer(tf.constant(QUESTIONS[:1]), **GREEDY)
    expected = found["answers"].numpy()[0].decode()
    options = ["--max-new-tokens", "8", "--temperature", "1e-6"]
    with serving(exported.folder) as addresses:
        for client, address in zip(clients, addresses):
            assert client.main(["--server", address, "answer", QUESTIONS[0], *options]) == 0
            shown = capsys.readouterr().out
            assert f"answers: {expected}\n" in shown and any(name in shown for name in TEXTS)
