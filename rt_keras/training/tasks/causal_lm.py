"""The task of causal language models."""

import math

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data.documents import SETS
from rt_keras.data.tokenizer import fingerprint, needs_utf8
from rt_keras.training.tasks.task import bits
from rt_keras.training.tasks.text_task import TextTask


class CausalLMTask(TextTask):
    """Predicts each token of a text from the previous tokens of its sequence.

    Documents, which are texts of any length, are concatenated and cut into sequences of
    `data.sequence_length` tokens.
    """

    kind = "causal_lm"
    model_class = models.RoutingTransformerCausalLM
    data_sets = SETS
    file_set = "text_file"
    units = (
        ("bits_per_byte", ".4f"),
        ("nats_per_token", ".4f"),
        ("perplexity_per_token", ",.3f"),
        ("perplexity_per_word", ",.1f"),
    )
    continues_text = True

    def check(self, experiment):
        super().check(experiment)
        parts = experiment.trainer.gradient_accumulation_steps
        parts = "trainer.gradient_accumulation_steps", parts, 1
        for key, value, needed in (parts, ("model.remat", experiment.model.remat, False)):
            if experiment.trainer.stateful and value != needed:
                raise ValueError(
                    f"{key} is {value}; with trainer.stateful it must be {needed}. To save "
                    "memory, reduce data.sequence_length, the length of a chunk"
                )

    def start_token(self, preprocessor):
        """Returns the id of the token that every sequence begins with; None if there is none."""
        return None

    def load_split(self, data, split, preprocessor=None):
        utf8 = needs_utf8(preprocessor.tokenizer)
        documents = data_lib.load_documents(data.name, split, data.directory, data.data_dir, utf8)
        # Usually, this reads only the first document.
        texts = documents.filter(lambda text: tf.strings.length(text) > 0).take(1)
        if not list(texts):
            raise ValueError(
                f"the {split} split of {data.name} has no text: all of its documents are empty"
            )
        return documents

    def packed(self, experiment):
        """Returns the folder of the training split's tokens, after packing it if needed."""
        tokenizer = experiment.preprocessor.tokenizer
        documents = experiment.load_split("train")
        place = self.packed_split(experiment.data, tokenizer=fingerprint(tokenizer))
        return data_lib.pack_documents(documents, tokenizer, *place)

    def training_batches(self, experiment, **order):
        batches, trainer = data_lib.training_dataset, experiment.trainer
        if trainer.stateful:
            batches, order["state_dropout"] = data_lib.stateful_dataset, trainer.state_dropout
        return batches(self.packed(experiment), experiment.data.sequence_length, **order)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        tokenizer, length = preprocessor.tokenizer, preprocessor.sequence_length
        start = self.start_token(preprocessor)
        return data_lib.evaluation_dataset(examples, tokenizer, length, batch_size, start)

    def example_spec(self, experiment, batch_size):
        inputs, *others = super().example_spec(experiment, batch_size)
        if experiment.trainer.stateful:
            inputs["reset_states"] = tf.TensorSpec([batch_size], tf.bool)
        return inputs, *others

    def count(self, examples):
        counts = data_lib.count_text(examples)
        if counts["bytes"] == 0:
            raise ValueError("there is no text to evaluate: every document is empty")
        return counts

    def scores(self, sums, counts):
        nats, tokens = sums["nats"], sums["labels"]
        return {
            "bits_per_byte": bits(nats) / counts["bytes"],
            "nats_per_token": nats / tokens,
            "perplexity_per_token": math.exp(nats / tokens),
            "perplexity_per_word": math.exp(nats / max(counts["words"], 1)),
        }
