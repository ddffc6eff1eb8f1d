"""The task of causal language models."""

import math

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.training.tasks.document_task import DocumentTask
from rt_keras.training.tasks.task import batch_spec, bits
from rt_keras.training.tasks.text_task import token_specs


class CausalLMTask(DocumentTask):
    """Predicts each token of a text from the previous tokens of its sequence."""

    kind = "causal_lm"
    model_class = models.RoutingTransformerCausalLM
    keys = (
        *DocumentTask.keys,
        "trainer.stateful",
        "trainer.state_dropout",
    )
    units = (
        ("bits_per_byte", ".4f"),
        ("nats_per_token", ".4f"),
        ("perplexity_per_token", ",.3f"),
        ("perplexity_per_word", ",.1f"),
    )
    continues_text = True

    def check(self, experiment):
        super().check(experiment)
        model, trainer = experiment.model, experiment.trainer
        for key, value, needed in (
            ("trainer.gradient_accumulation_steps", trainer.gradient_accumulation_steps, 1),
            ("model.remat", model.remat, False),
        ):
            if trainer.stateful and value != needed:
                raise ValueError(
                    f"{key} is {value}; with trainer.stateful it must be {needed}. To save "
                    "memory, reduce data.sequence_length, the length of a chunk"
                )

    def start_token(self, preprocessor):
        """Returns the id of the token that every sequence begins with; None if there is none."""
        return None

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        return data_lib.evaluation_dataset(
            examples,
            preprocessor.tokenizer,
            preprocessor.sequence_length,
            batch_size,
            self.start_token(preprocessor),
        )

    def example_spec(self, experiment, batch_size):
        length = experiment.data.sequence_length
        inputs = token_specs("", batch_size, length)
        if experiment.trainer.stateful:
            inputs["reset_states"] = tf.TensorSpec([batch_size], tf.bool)
        return batch_spec(inputs, batch_size, length)

    def scores(self, sums, counts):
        nats, tokens = sums["nats"], sums["labels"]
        return {
            "bits_per_byte": bits(nats) / counts["bytes"],
            "nats_per_token": nats / tokens,
            "perplexity_per_token": math.exp(nats / tokens),
            "perplexity_per_word": math.exp(nats / max(counts["words"], 1)),
        }
