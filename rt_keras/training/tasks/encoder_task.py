"""The base class of tasks whose models see whole sequences."""

import keras
import tensorflow as tf

from rt_keras.models.routing_transformer_masked_lm_preprocessor import vocabulary_with_mask
from rt_keras.training.tasks.task import label_nats
from rt_keras.training.tasks.text_task import TextTask


class EncoderTask(TextTask):
    """A task whose model sees a whole sequence.

    All of its models have a token id for the mask, so that each of them can start from the weights
    of a masked language model.
    """

    keys = tuple(key for key in TextTask.keys if key != "model.loss_chunk_size")
    generates = None

    def token_ids(self, preprocessor):
        return vocabulary_with_mask(preprocessor.tokenizer)

    def tokens(self, experiment):
        return experiment.data.sequence_length

    def metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def figures(self, model, inputs, labels):
        logits = model(inputs, training=False)
        found = tf.argmax(logits, axis=-1, output_type=tf.int32) == labels
        return {"nats": label_nats(logits, labels), "correct": tf.cast(found, tf.float32)}

    def scores(self, sums, counts):
        return {
            "accuracy": sums["correct"] / sums["labels"],
            self.loss_name: sums["nats"] / sums["labels"],
        }
