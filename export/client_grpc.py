"""A gRPC client of the served model. Needs `pip install tensorflow-serving-api`.

python export/client_grpc.py generate "Once upon a time" --max-new-tokens 100 --temperature 0.8
python export/client_grpc.py score-text "Once upon a time" "time a upon Once"
python export/client_grpc.py score 81 112 101
python export/client_grpc.py complete top.png --output whole.png
python export/client_grpc.py transcribe hello.wav
python export/client_grpc.py answer "Why is the sky blue?"
"""

import sys

import grpc
import tensorflow as tf
from arguments import INPUT_TYPES, fail, parse, show
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def predict(server, signature, inputs, model="rt_keras", timeout=60):
    """Calls a signature of the model.

    Args:
        server: HOST:PORT, such as "localhost:8500".
        signature: a signature, such as "score", "score_text" or "generate".
        inputs: dict of the signature's inputs.
        model: string, the name of the model on the server. Defaults to "rt_keras".
        timeout: number of seconds. Defaults to 60.

    Returns:
        Dict of the signature's outputs, as NumPy arrays.

    Raises:
        ValueError: if the signature or an input is unknown or an input has the wrong type; the
            message starts with its name.
        grpc.RpcError: if the server refuses the request, with its message.
    """
    if signature not in INPUT_TYPES:
        raise ValueError(
            f"{signature}: there is no such signature; signatures are {', '.join(INPUT_TYPES)}"
        )
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(_proto(signature, name, value))
    with grpc.insecure_channel(server) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        response = stub.Predict(request, timeout=timeout)
    return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}


def _proto(signature, name, value):
    if signature.endswith("_next") and name.startswith("state_"):
        return tf.make_tensor_proto(value)
    types = INPUT_TYPES[signature]
    if name not in types:
        raise ValueError(f"{name}: {signature} has no such input; it has {', '.join(types)}")
    try:
        return tf.make_tensor_proto(value, dtype=types[name])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {value!r} is not a tensor of {types[name]}: {error}") from None


def main(argv=None):
    """Queries the server and prints its answer or its error; returns the exit status."""
    try:
        server, signature, inputs, output = parse(__doc__, "localhost:8500", argv)
        show(predict(server, signature, inputs), output)
    except grpc.RpcError as error:
        return fail(f"{error.code().name}: {error.details()}")
    except (ValueError, OSError) as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
