"""Warm-up requests that TensorFlow Serving runs while it loads a model.

The first call of a signature optimizes its graph and fills caches. With warm-up requests, no user
waits for that.
"""

import tensorflow as tf

from rt_keras.data import extras
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
    """
    # An input of a name has the same value in each signature.
    second = [0.0] * SAMPLING_RATE
    values = {
        "ids": tf.constant([[1, 1, 1, 1]]),
        **dict.fromkeys(("texts", "prompts", "questions"), tf.constant(["a text"])),
        "max_new_tokens": tf.constant([4]),
        "temperature": tf.constant([1.0]),
        "top_p": tf.constant([0.9]),
        "top_k": tf.constant([10]),
        "seed": tf.constant([0], tf.int64),
        "rows": tf.constant(1),
        "sound_bytes": tf.constant([encode_wav(second, SAMPLING_RATE)]),
        "samples": tf.constant([second]),
        "sampling_rate": tf.constant(SAMPLING_RATE),
        "labels": tf.constant([0]),
    }
    if "complete" in signatures:
        # A black image without its last row.
        shape = model.backbone.image_shape
        values["image_bytes"] = tf.io.encode_png(tf.zeros(shape, tf.uint8))[None]
        values["known_rows"] = tf.constant([shape[0] - 1])
    if "new_state" in signatures:
        values |= signatures["new_state"](values["rows"])
    requests = []
    for name, function in signatures.items():
        if name != "serving_default":
            request = predict_pb2.PredictRequest()
            request.model_spec.name, request.model_spec.signature_name = model_name, name
            for spec in tf.nest.flatten(function.input_signature):
                request.inputs[spec.name].CopyFrom(tf.make_tensor_proto(values[spec.name]))
            requests.append(request)
    return requests


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
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())
