"""The clients of `export/` against a server that speaks the Predict API."""

import json
import shutil
import subprocess
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.serving import server
from tests.serving.served import BAD_REQUESTS

EXPORT = Path(__file__).parent.parent.parent / "export"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def addresses(served):
    """Of the server: gRPC and REST."""
    with server.serving(served.folder) as addresses:
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


def test_scores_and_texts_are_those_of_the_saved_model(predict, served):
    texts = ["the café", ""]
    expected = served.ask("score_text", texts=texts)
    for name, values in predict("score_text", {"texts": texts}).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5)
    ids = [[5, 6, 7], [8, 9, 10]]
    found = predict("score", {"ids": ids})["log_probabilities"]
    np.testing.assert_allclose(found, served.ask("score", ids=ids)["log_probabilities"], rtol=1e-5)
    # The first has parameters; the second has bytes that are no text.
    for inputs in (
        {"prompts": ["once", ""], "max_new_tokens": 9, "top_k": [0, 4], "seed": 2},
        {"prompts": [b"\xff\x00"], "max_new_tokens": 5},
    ):
        assert predict("generate", inputs)["texts"] == served.texts(**inputs)
    # Parameters have defaults.
    expected = served.texts(prompts=["once"], max_new_tokens=64)
    assert predict("generate", {"prompts": ["once"]})["texts"] == expected


def test_a_state_goes_on(addresses, clients, served):
    ids = np.array([[5, 6, 7, 8, 9, 10, 11], [8, 9, 10, 0, 0, 0, 0]])
    expected = served.ask("score", ids=ids)["log_probabilities"]
    both = []
    for client, address in zip(clients, addresses):
        state, scores = client.predict(address, "new_state", {"rows": 2}), []
        for chunk in (ids[:, :3], ids[:, 3:]):
            state = client.predict(address, "score_next", {"ids": chunk.tolist(), **state})
            scores.append(state.pop("log_probabilities"))
        np.testing.assert_allclose(np.concatenate(scores, 1), expected, rtol=1e-4, atol=1e-5)
        inputs = {"prompts": [" and", ""], "max_new_tokens": 6, "top_k": 1}
        said = client.predict(address, "generate_next", {**inputs, **state})["continuations"]
        both.append([item.decode() if isinstance(item, bytes) else item for item in said])
    assert both[0] == both[1]


def test_what_is_wrong_is_named_and_the_server_goes_on(predict):
    for signature, inputs, name in BAD_REQUESTS:
        with pytest.raises((ValueError, grpc.RpcError), match=rf"(\b|_){name}(\b|_)"):
            predict(signature, inputs)
    # Of a wrong type, and unknown.
    prompt = {"prompts": ["a"]}
    with pytest.raises(ValueError, match=r"\bids\b"):
        predict("score", {"ids": [["five"]]})
    with pytest.raises(ValueError, match=r"\btemperature\b"):
        predict("generate", {**prompt, "temperature": "hot"})
    with pytest.raises((ValueError, grpc.RpcError), match="heat"):
        predict("generate", {**prompt, "heat": 1.0})
    assert predict("score_text", {"texts": ["a"]})["tokens"] == [2]


def test_command_lines(addresses, clients, served, capsys):
    parameters = ["--max-new-tokens", "5", "--temperature", "0.7", "--seed", "3"]
    expected = served.texts(prompts=["once", ""], max_new_tokens=5, temperature=0.7, seed=3)
    for client, address in zip(clients, addresses):
        options = ["--server", address]
        assert client.main([*options, "generate", "once", "", *parameters]) == 0
        printed = capsys.readouterr().out
        assert all(f"texts: {text}\n" in printed for text in expected)
        assert client.main([*options, "score-text", "once", "upon"]) == 0
        assert capsys.readouterr().out.count("bits_per_byte: ") == 2
        assert client.main([*options, "score", "5", "6"]) == 0
        assert "log_probabilities: [" in capsys.readouterr().out
        assert client.main([*options, "generate", "once", "--temperature", "0"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("client: error:") and "temperature" in line
        assert client.main(["--server", "localhost:1", "score", "5"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("client: error:")
    with pytest.raises(ValueError, match="scores: .*score_text"):
        clients[0].predict(addresses[0], "scores", {"ids": [[5]]})


def test_the_curl_client_gets_what_others_get_and_says_what_is_refused(addresses, served):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    script = (EXPORT / "client_curl.sh").read_text()

    def run(script):
        command = ["bash", "-s", addresses[1]]
        return subprocess.run(command, input=script, capture_output=True, text=True)

    result = run(script)
    assert result.returncode == 0, result.stderr
    status, scores, text_scores, texts, rows = map(json.loads, result.stdout.splitlines())
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert np.shape(scores["outputs"]) == (1, 3)
    assert text_scores["outputs"]["tokens"] == [17]
    expected = served.texts(prompts=["Once upon", "There was"], max_new_tokens=20, temperature=0.8)
    assert texts["outputs"]["texts"] == expected
    assert len(rows["predictions"]) == 2
    result = run(script.replace('"temperature": 0.8', '"temperature": 0'))
    assert result.returncode != 0
    assert "temperature: it must be finite and at least 1e-30" in result.stdout
