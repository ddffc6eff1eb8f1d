"""The clients of `export/` against a server that speaks the Predict API."""

import concurrent.futures
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.serving import served, server

EXPORT = Path(__file__).parent.parent.parent / "export"


pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def addresses():
    """Of the server: gRPC and REST."""
    with server.serving(served.exported()) as addresses:
        yield addresses


@pytest.fixture(params=["gRPC", "REST"])
def predict(request, addresses, clients):
    """What a client gives for a signature and its inputs."""
    number = ["gRPC", "REST"].index(request.param)

    def predict(signature, inputs):
        outputs = clients[number].predict(addresses[number], signature, inputs)
        return {
            name: [item.decode() if isinstance(item, bytes) else item for item in np.array(values)]
            for name, values in outputs.items()
        }

    return predict


def test_scores(predict):
    texts = ["the café", ""]
    expected = served.ask("score_text", texts=texts)
    for name, values in predict("score_text", {"texts": texts}).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5)
    ids = [[5, 6, 7], [8, 9, 10]]
    found = predict("score", {"ids": ids})["log_probabilities"]
    np.testing.assert_allclose(found, served.ask("score", ids=ids)["log_probabilities"], rtol=1e-5)


def test_texts(predict):
    inputs = {"prompts": ["once", ""], "max_new_tokens": 9, "top_k": [0, 4], "seed": 2}
    assert predict("generate", inputs)["texts"] == served.texts(**inputs)


def test_parameters_have_defaults(predict):
    expected = served.texts(prompts=["once"], max_new_tokens=64)
    assert predict("generate", {"prompts": ["once"]})["texts"] == expected


def test_a_text_in_chunks_scores_as_the_whole(addresses, clients):
    ids = np.array([[5, 6, 7, 8, 9, 10, 11], [8, 9, 10, 0, 0, 0, 0]])
    expected = served.ask("score", ids=ids)["log_probabilities"]
    for client, address in zip(clients, addresses):
        state, scores = client.predict(address, "new_state", {"rows": 2}), []
        for chunk in (ids[:, :3], ids[:, 3:]):
            state = client.predict(address, "score_next", {"ids": chunk.tolist(), **state})
            scores.append(state.pop("log_probabilities"))
        np.testing.assert_allclose(np.concatenate(scores, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_chat_goes_on(addresses, clients):
    inputs = {"max_new_tokens": 6, "top_k": 1}
    expected = None
    for client, address in zip(clients, addresses):
        state, said = client.predict(address, "new_state", {"rows": 1}), []
        for turn in ("once", " and then"):
            state = client.predict(address, "generate_next", {"prompts": [turn], **inputs, **state})
            said += [np.array(state.pop("continuations")).item()]
        said = [item.decode() if isinstance(item, bytes) else item for item in said]
        expected = expected or said
        assert said == expected


def test_a_signature_that_is_not_there(clients, addresses):
    with pytest.raises(ValueError, match="scores: .*score_text"):
        clients[0].predict(addresses[0], "scores", {"ids": [[5]]})


def test_bytes_that_are_no_text(predict):
    inputs = {"prompts": [b"\xff\x00"], "max_new_tokens": 5}
    assert predict("generate", inputs)["texts"] == served.texts(**inputs)


@pytest.mark.parametrize("case", served.BAD_REQUESTS)
def test_a_bad_input_is_named_and_the_server_goes_on(predict, case):
    signature, inputs, name = served.BAD_REQUESTS[case]
    with pytest.raises((ValueError, grpc.RpcError), match=rf"(\b|_){name}(\b|_)"):
        predict(signature, inputs)
    assert predict("score_text", {"texts": ["a"]})["tokens"] == [2]


@pytest.mark.parametrize(
    "signature, name, value",
    [("score", "ids", [["five"]]), ("generate", "temperature", "hot"), ("generate", "top_k", 2.5)],
)
def test_a_wrong_type_is_named(predict, signature, name, value):
    inputs = {name: value, **({"prompts": ["a"]} if signature == "generate" else {})}
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        predict(signature, inputs)


def test_an_unknown_input_is_named(predict):
    with pytest.raises((ValueError, grpc.RpcError), match="heat"):
        predict("generate", {"prompts": ["a"], "heat": 1.0})


def test_the_server_goes_on_after_a_type_that_no_client_sends(addresses, clients):
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = "score"
    request.inputs["ids"].CopyFrom(tf.make_tensor_proto([[1.5]]))
    with grpc.insecure_channel(addresses[0]) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="int32.*float|float.*int32"):
            stub.Predict(request)
    found = clients[0].predict(addresses[0], "score", {"ids": [[5]]})
    assert found["log_probabilities"].shape == (1, 1)


def test_eight_clients_at_once_get_what_one_gets(predict):
    requests = [{"prompts": ["ab" * n], "max_new_tokens": 3 + n % 5, "seed": n} for n in range(16)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda inputs: predict("generate", inputs)["texts"], requests)
        assert list(found) == [served.texts(**inputs) for inputs in requests]


@pytest.mark.parametrize("number", [0, 1])
def test_command_lines(addresses, clients, number, capsys):
    client, options = clients[number], ["--server", addresses[number]]
    parameters = ["--max-new-tokens", "5", "--temperature", "0.7", "--seed", "3"]
    assert client.main([*options, "generate", "once", "", *parameters]) == 0
    expected = served.texts(prompts=["once", ""], max_new_tokens=5, temperature=0.7, seed=3)
    printed = capsys.readouterr().out
    assert all(f"texts: {text}\n" in printed for text in expected)
    assert client.main([*options, "score-text", "once", "upon"]) == 0
    assert capsys.readouterr().out.count("bits_per_byte: ") == 2
    assert client.main([*options, "score", "5", "6"]) == 0
    assert "log_probabilities: [" in capsys.readouterr().out
    assert client.main([*options, "generate", "once", "--temperature", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("client: error:") and "temperature" in line


def test_a_server_that_is_not_there(clients, capsys):
    for client in clients:
        assert client.main(["--server", "localhost:1", "score", "5"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("client: error:")


def test_rest_answers_by_rows_too(addresses):
    body = {"instances": [{"texts": "a"}, {"texts": "the café"}], "signature_name": "score_text"}
    url = f"http://{addresses[1]}/v1/models/rt_keras:predict"
    with urllib.request.urlopen(url, data=json.dumps(body).encode()) as response:
        rows = json.load(response)["predictions"]
    assert [row["tokens"] for row in rows] == [2, 10]


def test_the_curl_client(addresses):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    command = ["bash", str(EXPORT / "client_curl.sh"), addresses[1]]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    status, scores, text_scores, texts, rows = map(json.loads, result.stdout.splitlines())
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert np.shape(scores["outputs"]) == (1, 3)
    assert text_scores["outputs"]["tokens"] == [17]
    expected = served.texts(prompts=["Once upon", "There was"], max_new_tokens=20, temperature=0.8)
    assert texts["outputs"]["texts"] == expected
    assert len(rows["predictions"]) == 2


def test_curl_says_what_the_server_refuses(addresses):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    script = (
        (EXPORT / "client_curl.sh").read_text().replace('"temperature": 0.8', '"temperature": 0')
    )
    command = ["bash", "-s", addresses[1]]
    result = subprocess.run(command, input=script, capture_output=True, text=True)
    assert result.returncode != 0
    assert "temperature: it must be finite and at least 1e-30" in result.stdout
