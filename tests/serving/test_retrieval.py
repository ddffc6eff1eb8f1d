import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import cli
from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models import (
    RoutingTransformerBackbone,
    RoutingTransformerEncoderBackbone,
    RoutingTransformerReader,
    RoutingTransformerReaderPreprocessor,
    RoutingTransformerTextEmbedder,
    RoutingTransformerTextEmbedderPreprocessor,
)
from rt_keras.retrieval import ExactIndex, Index, build_index, read_index
from rt_keras.serving import export_saved_model
from rt_keras.serving.retrieval import answering_function, embedding_function
from tests.serving.server import serving

pytestmark = pytest.mark.end_to_end

TEXTS = {"sky": "The sky is blue.", "sea": "The sea is deep and cold.", "cat": "A cat sat."}
QUESTIONS = ["why is the sky blue?", "who sat?", "is the sea cold?"]
GREEDY = {"temperature": tf.constant(1e-6), "max_new_tokens": tf.constant(8)}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    backbone = RoutingTransformerEncoderBackbone(
        259, 1, 16, 32, [LocalHeads(2, block_size=8)], sinusoidal_positions=True
    )
    preprocessor = RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 40)
    retriever = RoutingTransformerTextEmbedder(
        backbone, preprocessor, projection_dim=8, question_length=12
    )
    return build_index(folder, retriever, tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def reader():
    backbone = RoutingTransformerBackbone(
        258, 1, 16, 32, [LocalHeads(1, block_size=8), FullHeads(1)], tie_embeddings=False
    )
    preprocessor = RoutingTransformerReaderPreprocessor(ByteTokenizer(), 2, 40, 24, 16)
    reader = RoutingTransformerReader(backbone, preprocessor)
    rng = np.random.default_rng(0)
    for weight in reader.trainable_variables:
        # Large differences: no near ties.
        weight.assign(weight + rng.normal(size=weight.shape))
    # Only letters.
    bias = np.full(258, -1e4, "float32")
    bias[98:124] = 0
    reader.output_dense.bias.assign(bias)
    reader.compile(sampler="greedy")
    return reader


def expected(reader, index, questions):
    """What `generate` answers to each question alone, of 8 tokens, and the passages."""
    answers, sources = [], []
    for question in questions:
        (found,) = index.search([question], 2)
        texts = [f"{x['title']}\n{x['text']}" for x in found]
        answers.append(reader.generate({"question": question, "passages": texts})[:8])
        sources.append([x["document"] for x in found])
    return answers, sources


def test_each_row_is_that_of_the_model_alone(reader, index):
    index = read_index(index)
    answer = answering_function(reader, index)
    found = {x: y.numpy() for x, y in answer(tf.constant(QUESTIONS), **GREEDY).items()}
    answers, sources = expected(reader, index, QUESTIONS)
    assert len(set(answers)) > 1
    assert [x.decode() for x in found["answers"]] == answers
    assert [[x.decode() for x in row] for row in found["sources"].tolist()] == sources
    assert found["passages"][0, 0].decode() in TEXTS.values()
    assert np.all(np.diff(found["scores"]) <= 0)


def test_an_index_may_have_fewer_passages_than_the_reader_reads(reader, index):
    index = read_index(index)
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


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"questions": tf.constant([" "])}, "questions: it must not be empty"),
        ({"questions": tf.constant(["a" * 25])}, "questions: it must have at most 24 tokens"),
        ({"questions": tf.constant([b"\xff"])}, None),
        ({"max_new_tokens": tf.constant(17)}, "max_new_tokens: it must be from 0 to 16"),
        ({"top_p": tf.constant(0.0)}, "top_p: it must be above 0"),
    ],
)
def test_wrong_requests(reader, index, inputs, message):
    answer = answering_function(reader, read_index(index))
    inputs = {"questions": tf.constant(["who?"]), **GREEDY, **inputs}
    if message is None:
        # Tokens of bytes need no UTF-8.
        assert answer(**inputs)["answers"].shape == [1]
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            answer(**inputs)


def test_nothing_is_answered_with_nothing(reader, index):
    found = answering_function(reader, read_index(index))(tf.constant([], tf.string), **GREEDY)
    assert found["answers"].shape == [0] and found["sources"].shape == [0, 2]


def test_embeddings(index):
    retriever = read_index(index).retriever
    embed = embedding_function(retriever)
    texts = ["abc", "", "a text that is longer than the sequences of the model"]
    found = embed(tf.constant(texts))["embeddings"].numpy()
    np.testing.assert_allclose(found, retriever.embed_texts(texts), atol=1e-6)
    assert embed(tf.constant([], tf.string))["embeddings"].shape == [0, 8]


def test_what_needs_an_index(reader, index, tmp_path):
    with pytest.raises(ValueError, match="index is required for a RoutingTransformerReader"):
        export_saved_model(reader, tmp_path)
    index = read_index(index)
    with pytest.raises(ValueError, match="index must be None for a RoutingTransformerTextEmbedder"):
        export_saved_model(index.retriever, tmp_path, index=index)
    with pytest.raises(ValueError, match="max_length does not apply"):
        export_saved_model(reader, tmp_path, max_length=8, index=index)


@pytest.fixture(scope="module")
def version(reader, index, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    reader.save_to_preset(folder / "model")
    words = ["export", "--model", folder / "model", "--index", index, "--output", folder / "served"]
    assert cli.main([str(word) for word in words]) == 0
    return folder / "served" / "1"


def test_clients_at_once_get_what_one_gets(reader, index, version, clients):
    answers, _ = expected(reader, read_index(index), QUESTIONS)
    with serving(version) as addresses, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for client, address in zip(clients, addresses):

            def ask(question, client=client, address=address):
                inputs = {"questions": [question], "temperature": [1e-6], "max_new_tokens": [8]}
                found = client.predict(address, "answer", inputs)["answers"][0]
                return found.decode() if isinstance(found, bytes) else found

            assert list(pool.map(ask, QUESTIONS * 2)) == answers * 2


def test_the_clients_print_answers_and_sources(version, clients, capsys):
    with serving(version) as addresses:
        for client, address in zip(clients, addresses):
            words = ["--server", address, "answer", QUESTIONS[0], "--max-new-tokens", "4"]
            assert client.main(words) == 0
            shown = capsys.readouterr().out
            assert "answers: " in shown and ".txt" in shown
