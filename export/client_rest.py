"""A REST client of the served model that needs only Python's standard library.

python export/client_rest.py generate "Once upon a time" --max-new-tokens 100 --temperature 0.8
python export/client_rest.py score-text "Once upon a time" "time a upon Once"
python export/client_rest.py score 81 112 101
python export/client_rest.py complete top.png --output whole.png
python export/client_rest.py transcribe hello.wav
python export/client_rest.py answer "Why is the sky blue?"
"""

import base64
import json
import sys
import urllib.error
import urllib.request

from arguments import ONLY_OUTPUT, fail, parse, show


def predict(server, signature, inputs, model="rt_keras", timeout=60):
    """Calls a signature of the model.

    Args:
        server: HOST:PORT, such as "localhost:8501".
        signature: a signature, such as "score", "score_text" or "generate".
        inputs: dict of the signature's inputs; bytes are sent unchanged.
        model: string, the name of the model on the server. Defaults to "rt_keras".
        timeout: number of seconds. Defaults to 60.

    Returns:
        Dict of the signature's outputs, as lists.

    Raises:
        ValueError: if the server refuses the request, with its message.
        OSError: if the server cannot be reached.
    """
    request = urllib.request.Request(
        f"http://{server}/v1/models/{model}:predict",
        data=json.dumps({"signature_name": signature, "inputs": _as_json(inputs)}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            outputs = json.load(response)["outputs"]
    except urllib.error.HTTPError as error:
        raise ValueError(_message(error)) from None
    outputs = outputs if isinstance(outputs, dict) else {ONLY_OUTPUT[signature]: outputs}
    return {name: [_from_json(value) for value in values] for name, values in outputs.items()}


def _as_json(value):
    """Encodes bytes as TensorFlow Serving takes them in JSON."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _from_json(value):
    """Decodes bytes as TensorFlow Serving writes them in JSON."""
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value


def _message(error):
    body = error.read().decode("utf-8", errors="replace")
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {body}"


def main(argv=None):
    """Queries the server and prints its answer or its error; returns the exit status."""
    try:
        server, signature, inputs, output = parse(__doc__, "localhost:8501", argv)
        show(predict(server, signature, inputs), output)
    except (ValueError, OSError) as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
