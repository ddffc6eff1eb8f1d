"""Models as SavedModels that need nothing but TensorFlow."""

import keras
import tensorflow as tf

from rt_keras import files


def scoring_function(model):
    """The scoring signature of a causal language model.

    `log_probabilities[b, i] = ln p(ids[b, i] | start, ids[b, 0], ..., ids[b, i - 1])`, with the
    tokenizer's start token before every sequence as in training. Padding scores 0.

    Args:
        model: a `RoutingTransformerCausalLM` with a preprocessor, whose tokenizer says which
            tokens are start and padding.

    Returns:
        A `tf.function` from `ids`, int32 `[batch, length]`, to a dict with
        `log_probabilities`, float32 `[batch, length]`; any batch and length.
    """
    tokenizer = model.preprocessor.tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])
    def score(ids):
        start = tf.fill([tf.shape(ids)[0], 1], tokenizer.start_token_id)
        before = tf.concat([start, ids], axis=1)[:, :-1]
        inputs = {"token_ids": before, "padding_mask": before != tokenizer.pad_token_id}
        logits = tf.cast(model(inputs, training=False), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
        return {"log_probabilities": tf.where(ids != tokenizer.pad_token_id, -nats, 0.0)}

    return score


def export_saved_model(model, path):
    """Writes a model as a SavedModel whose default signature is `scoring_function`.

    It loads with `tf.saved_model.load` and in TensorFlow Serving where `rt_keras` is not
    installed.

    Args:
        model: a `RoutingTransformerCausalLM` with a preprocessor.
        path: the folder to write, new or empty.

    Raises:
        FileExistsError: if `path` already holds something.
    """
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", scoring_function(model))
    with files.whole_folder(path) as part:
        archive.write_out(str(part), verbose=False)
