"""Warm-up requests that TensorFlow Serving runs while it loads a model.

The first call of a signature optimizes its graph and fills caches. With warm-up requests, no user
waits for that.
"""

import tensorflow as tf

from rt_keras import extras
from rt_keras.data.wav import SAMPLING_RATE, encode_wav

with extras.needed("serving", "Exporting a model"):
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

FILE_NAME = "tf_serving_warmup_requests"


def warm_up_requests(model_name, signatures, model):
    """Creates one request for each signature.

    Args:
        model_name: string, name of the model on the server.
        signatures: dictionary of the model's functions by name.
        model: the model.

    Returns:
        List of `tensorflow.serving.PredictRequest`.

    >>> names = ("score", "score_text", "generate")
    >>> requests = warm_up_requests("books", dict.fromkeys(names), model=None)
    >>> [request.model_spec.signature_name for request in requests]
    ['score', 'score_text', 'generate']
    """
    if "complete" in signatures:
        return [predict_request(model_name, "complete", _image_inputs(model.backbone))]
    if "transcribe" in signatures:
        second = [0.0] * SAMPLING_RATE
        inputs = {
            "transcribe": {"sound_bytes": tf.constant([encode_wav(second, SAMPLING_RATE)])},
            "transcribe_samples": {
                "samples": tf.constant([second]),
                "sampling_rate": tf.constant(SAMPLING_RATE),
            },
        }
        return [predict_request(model_name, name, values) for name, values in inputs.items()]
    texts = {"texts": tf.constant(["a text"])}
    if "embed" in signatures:
        return [predict_request(model_name, "embed", texts)]
    ids = {"ids": tf.constant([[1, 1, 1, 1]])}
    sampling = {
        "max_new_tokens": tf.constant([4]),
        "temperature": tf.constant([1.0]),
        "top_p": tf.constant([0.9]),
        "top_k": tf.constant([10]),
        "seed": tf.constant([0], tf.int64),
    }
    if "answer" in signatures:
        questions = {"questions": texts["texts"]}
        return [predict_request(model_name, "answer", {**questions, **sampling})]
    prompts = {"prompts": texts["texts"], **sampling}
    if "translate" in signatures:
        return [predict_request(model_name, "translate", {**texts, **sampling})]
    inputs = {"score": ids, "score_text": texts, "generate": prompts}
    if "new_state" in signatures:
        rows = {"rows": tf.constant(1)}
        state = signatures["new_state"](**rows)
        inputs["new_state"] = rows
        inputs |= {"score_next": {**ids, **state}, "generate_next": {**prompts, **state}}
    return [predict_request(model_name, signature, values) for signature, values in inputs.items()]


def _image_inputs(backbone):
    """Returns inputs of `complete`: a black image without its last row."""
    blank = tf.io.encode_png(tf.zeros(backbone.image_shape, tf.uint8))
    inputs = {
        "image_bytes": blank[None],
        "known_rows": tf.constant([backbone.image_shape[0] - 1]),
        "temperature": tf.constant([1.0]),
        "seed": tf.constant([0], tf.int64),
    }
    if backbone.num_classes is not None:
        inputs["labels"] = tf.constant([0])
    return inputs


def predict_request(model_name, signature, inputs):
    """Creates a `tensorflow.serving.PredictRequest` from a signature's inputs by name."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def write_warm_up(path, requests):
    """Writes requests to the file that TensorFlow Serving reads.

    Args:
        path: `Path` of the folder of the SavedModel.
        requests: list of `tensorflow.serving.PredictRequest`.
    """
    folder = path / "assets.extra"
    folder.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / FILE_NAME)) as writer:
        for request in requests:
            log = prediction_log_pb2.PredictLog(request=request)
            record = prediction_log_pb2.PredictionLog(predict_log=log)
            writer.write(record.SerializeToString())
