"""Sample data for a model as batches of its inputs."""

import keras
import keras_hub
import tensorflow as tf


def batches_of(model, data):
    """Returns batches of the inputs of a model, without labels and sample weights.

    Args:
        model: a Keras model. A KerasHub task preprocesses strings.
        data: a batch, as a tensor, an array, a list of strings or a dictionary of these; or an
            iterable of batches, or of tuples of batches and labels.

    Returns:
        List of batches.

    Raises:
        ValueError: if there are none.
    """
    batches = [data] if _is_batch(data) else list(data)
    if not batches:
        raise ValueError("data must have at least one batch")
    return [_inputs(model, batch) for batch in batches]


def _is_batch(data):
    if isinstance(data, (list, tuple)):
        return _are_texts(data)
    return isinstance(data, dict) or tf.is_tensor(data) or hasattr(data, "__array__")


def _are_texts(data):
    return isinstance(data, (list, tuple)) and bool(data) and isinstance(data[0], str)


def _inputs(model, batch):
    if _are_texts(batch):
        # Keras would interpret the second text as labels.
        batch = tf.constant(batch)
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    texts = [x for x in tf.nest.flatten(inputs) if tf.convert_to_tensor(x).dtype == tf.string]
    if texts and isinstance(model, keras_hub.models.Task):
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(model.preprocess_samples(inputs))
    return inputs
