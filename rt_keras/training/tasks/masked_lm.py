"""Masked language models: tokens of a text that are hidden, from all the others."""

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.models.routing_transformer_masked_lm_preprocessor import most_masks
from rt_keras.training.tasks.document_task import DocumentTask
from rt_keras.training.tasks.encoder_task import EncoderTask
from rt_keras.training.tasks.text_task import token_specs
from rt_keras.training.tokenizer import make_tokenizer


class MaskedLMTask(EncoderTask, DocumentTask):
    """Predicts tokens that are hidden from those around them.

    In training other tokens are hidden in each pass over the text; in a validation and when a model
    is scored, always the same ones.
    """

    kind = "masked_lm"
    model_class = models.RoutingTransformerMaskedLM
    keys = (*EncoderTask.keys, "data.mask_rate")
    units = (("accuracy", ".4f"), ("nats_per_token", ".4f"))

    def predictions(self, config):
        return most_masks(config.data.mask_rate, config.data.sequence_length)

    def make_preprocessor(self, config):
        return models.RoutingTransformerMaskedLMPreprocessor(
            make_tokenizer(config.tokenizer),
            sequence_length=config.data.sequence_length,
            mask_selection_rate=config.data.mask_rate,
        )

    def training_batches(self, config, preprocessor=None, first_step=0, share=(0, 1)):
        return data_lib.masked_batches(
            self.sequences(config, preprocessor, first_step, share),
            preprocessor,
            config.data.batch_size,
            seed=config.trainer.seed,
            first_batch=first_step,
            share=share,
        )

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        tokenizer, length = preprocessor.tokenizer, preprocessor.sequence_length
        sequences = data_lib.evaluation_dataset(examples, tokenizer, length, batch_size)
        return data_lib.masked_batches(sequences, preprocessor, batch_size)

    def example_spec(self, config, batch_size):
        masks = [batch_size, self.predictions(config)]
        inputs = token_specs("", batch_size, config.data.sequence_length)
        inputs["mask_positions"] = tf.TensorSpec(masks, tf.int32)
        return inputs, tf.TensorSpec(masks, tf.int32), tf.TensorSpec(masks, tf.float32)
