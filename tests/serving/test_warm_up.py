import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tests.serving import served


@pytest.mark.end_to_end
def test_the_model_answers_its_warm_up_requests():
    path = served.exported() / "assets.extra" / "tf_serving_warmup_requests"
    records = [
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(path))
    ]
    # TensorFlow Serving reads a thousand at most.
    assert len(records) == 6
    signatures = served.loaded().signatures
    for record in records:
        assert record.WhichOneof("log_type") == "predict_log"
        request = record.predict_log.request
        assert request.model_spec.name == "rt_keras"
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        assert all(len(value) == 1 for value in outputs.values())
