"""A test server with TensorFlow Serving's Predict API, over gRPC and REST.

It does what TensorFlow Serving does with a request, in the same order: inputs by the names of the
SignatureDef, its defaults for those that are missing, one run of the session that TensorFlow's
loader made of the SavedModel, with whatever types and shapes came. REST requests become the same
protobufs on their way.
"""

import base64
import contextlib
import http.server
import json
import re
import threading
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

NAME = "rt_keras"


class Model:
    """A SavedModel in a session."""

    def __init__(self, path):
        with tf.Graph().as_default():
            self.session = tf.compat.v1.Session()
            meta = tf.compat.v1.saved_model.load(self.session, ["serve"], str(path))
        # The others are used by the loader.
        method = tf.saved_model.PREDICT_METHOD_NAME
        self.signatures = {
            name: item for name, item in meta.signature_def.items() if item.method_name == method
        }
        self.calls = {name: self._callable(item) for name, item in self.signatures.items()}

    def _callable(self, signature):
        options = config_pb2.CallableOptions()
        options.feed.extend(info.name for info in signature.inputs.values())
        options.fetch.extend(info.name for info in signature.outputs.values())
        # Unlike session.run, it leaves the checks of types and shapes to the session.
        return self.session._make_callable_from_options(options)

    def predict(self, request):
        """Returns the PredictResponse to a PredictRequest."""
        name = request.model_spec.signature_name or "serving_default"
        if name not in self.signatures:
            raise tf.errors.FailedPreconditionError(None, None, f'signature "{name}" not found')
        signature = self.signatures[name]
        unknown = set(request.inputs) - set(signature.inputs)
        missing = set(signature.inputs) - set(request.inputs) - set(signature.defaults)
        if unknown or missing:
            message = f"Sent extra: {unknown}. Missing but required: {missing}."
            raise tf.errors.InvalidArgumentError(None, None, message)
        values = [
            request.inputs[alias] if alias in request.inputs else signature.defaults[alias]
            for alias in signature.inputs
        ]
        outputs = self.calls[name](*map(tf.make_ndarray, values))
        response = predict_pb2.PredictResponse()
        for alias, value in zip(signature.outputs, outputs):
            response.outputs[alias].CopyFrom(tf.make_tensor_proto(value))
        return response


class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The gRPC side."""

    def __init__(self, model):
        self.model = model

    def Predict(self, request, context):
        try:
            return self.model.predict(request)
        except tf.errors.OpError as error:
            codes = {code.value[0]: code for code in grpc.StatusCode}
            context.abort(codes[error.error_code], error.message)


def rest_handler(model):
    """The REST side: a handler of requests to `/v1/models/rt_keras`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status = {"version": "1", "state": "AVAILABLE"}
            self.answer(200, {"model_version_status": [status]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                if not re.fullmatch(f"/v1/models/{NAME}(/versions/1)?:predict", self.path):
                    raise ValueError(f"Malformed request: POST {self.path}")
                request = request_of_json(model, body)
                self.answer(200, json_of_response(model.predict(request), "instances" in body))
            except ValueError as error:
                self.answer(400, {"error": str(error)})
            except tf.errors.OpError as error:
                self.answer(400, {"error": error.message})

        def answer(self, status, values):
            body = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    return Handler


def request_of_json(model, body):
    """Converts the JSON of a REST request to a PredictRequest."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = NAME
    request.model_spec.signature_name = body.get("signature_name", "")
    signature = model.signatures[body.get("signature_name", "serving_default")]
    inputs = body.get("inputs")
    if inputs is None:
        rows = body["instances"]
        inputs = {name: [row[name] for row in rows] for name in rows[0]}
    for name, value in inputs.items():
        if name not in signature.inputs:
            raise ValueError(f"JSON object: does not have named input: {name}")
        request.inputs[name].CopyFrom(_tensor_proto(name, value, signature.inputs[name].dtype))
    return request


def _tensor_proto(name, value, dtype):
    try:
        return tf.make_tensor_proto(_without_base64(value), dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Failed to process element: 0 key: {name}. Error: {error}") from None


def _without_base64(value):
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return [_without_base64(item) for item in value] if isinstance(value, list) else value


def json_of_response(response, by_rows):
    """Returns the REST response: columns or rows, and a single output without its name."""
    outputs = {
        name: _as_json(tf.make_ndarray(value), name.endswith("_bytes"))
        for name, value in response.outputs.items()
    }
    if len(outputs) == 1:
        (outputs,) = outputs.values()
        return {"predictions" if by_rows else "outputs": outputs}
    if not by_rows:
        return {"outputs": outputs}
    return {"predictions": [dict(zip(outputs, row)) for row in zip(*outputs.values())]}


def _as_json(array, in_base64):
    def encoded(value):
        return {"b64": base64.b64encode(value).decode()} if in_base64 else value.decode()

    decode = np.vectorize(encoded, otypes=[object])
    return (decode(array) if array.dtype == object else array).tolist()


@contextlib.contextmanager
def serving(path):
    """Serves a SavedModel and yields its gRPC and REST addresses, each HOST:PORT."""
    model = Model(path)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Servicer(model), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    rest = http.server.ThreadingHTTPServer(("localhost", 0), rest_handler(model))
    thread = threading.Thread(target=rest.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"localhost:{port}", f"localhost:{rest.server_port}"
    finally:
        rest.shutdown()
        rest.server_close()
        thread.join()
        server.stop(None)
