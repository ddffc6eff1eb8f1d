"""The task of masked language models."""

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.models.routing_transformer_masked_lm_preprocessor import most_masks
from rt_keras.training.tasks.document_task import DocumentTask
from rt_keras.training.tasks.encoder_task import EncoderTask
from rt_keras.training.tasks.task import batch_spec
from rt_keras.training.tasks.text_task import token_specs


class MaskedLMTask(EncoderTask, DocumentTask):
    """Predicts masked tokens from the tokens around them.

    In training, each pass over the text masks different tokens. Validation and evaluation always
    mask the same tokens.
    """

    kind = "masked_lm"
    model_class = models.RoutingTransformerMaskedLM
    keys = (*EncoderTask.keys, "data.mask_rate")
    units = (("accuracy", ".4f"), ("nats_per_token", ".4f"))

    def preprocessor_options(self, experiment):
        options = super().preprocessor_options(experiment)
        return {**options, "mask_selection_rate": experiment.data.mask_rate}

    def training_batches(self, experiment, **order):
        sequences = super().training_batches(experiment, **order)
        return data_lib.masked_batches(sequences, experiment.preprocessor, **order)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        tokenizer, length = preprocessor.tokenizer, preprocessor.sequence_length
        sequences = data_lib.evaluation_dataset(examples, tokenizer, length, batch_size)
        return data_lib.masked_batches(sequences, preprocessor, batch_size)

    def example_spec(self, experiment, batch_size):
        length = experiment.data.sequence_length
        masks = most_masks(experiment.data.mask_rate, length)
        inputs = token_specs("", batch_size, length)
        inputs["mask_positions"] = tf.TensorSpec([batch_size, masks], tf.int32)
        return batch_spec(inputs, batch_size, masks)
