"""The base class of tasks on texts, with a tokenizer and a sequence length."""

from pathlib import Path

import tensorflow as tf

from rt_keras.models.chunked_loss import positions_at_once
from rt_keras.training.tasks.task import Task, batch_spec
from rt_keras.training.tokenizer import make_tokenizer


class TextTask(Task):
    """A task whose model predicts the tokens of a text."""

    generates = "text"

    def prompts(self, texts, model, max_length):
        """Converts texts to prompts for the model's `generate`.

        Args:
            texts: list of bytes, the texts of a user.
            model: a model of the task.
            max_length: int, the maximum number of tokens, prompt included.

        Returns:
            Prompts.

        Raises:
            ValueError: if a text is invalid and `generate` would not report it.
        """
        return texts

    def make_preprocessor(self, experiment):
        tokenizer = make_tokenizer(experiment.config.tokenizer)
        options = self.preprocessor_options(experiment)
        preprocessor = self.model_class.preprocessor_cls(tokenizer, **options)
        given, least = experiment.model.vocabulary_size, self.token_ids(preprocessor)
        if given is not None and given < least:
            raise ValueError(
                f"model.vocabulary_size is {given}; with this tokenizer it must be at least {least}"
            )
        return preprocessor

    def preprocessor_options(self, experiment):
        """Returns the arguments of the preprocessor, except the tokenizer."""
        return {"sequence_length": experiment.data.sequence_length}

    def token_ids(self, preprocessor):
        return preprocessor.tokenizer.vocabulary_size()

    def length(self, experiment):
        """Returns the number of tokens in a sequence."""
        return experiment.data.sequence_length

    def check(self, experiment):
        model, length = experiment.model, self.length(experiment)
        longest = model.max_sequence_length
        if longest is not None and longest < length:
            raise ValueError(
                f"model.max_sequence_length is {longest}; it must be at least "
                f"data.sequence_length, {length}, or null"
            )

    def check_sources(self, experiment):
        super().check_sources(experiment)
        name, path = experiment.config.tokenizer.name, experiment.config.tokenizer.vocabulary
        if name != "bytes" and path is None:
            raise ValueError(f"tokenizer.vocabulary must name a file for tokenizer {name}")
        if name != "bytes" and not Path(path).is_file():
            raise ValueError(f"tokenizer.vocabulary is {path!r}, not a file")

    def example_spec(self, experiment, batch_size):
        length = self.length(experiment)
        return batch_spec(token_specs("", batch_size, length), batch_size, length)

    def figures(self, model, inputs, labels):
        hidden = model.hidden_states(inputs, False)
        count = labels.shape[0] * labels.shape[1]
        chunk_size = positions_at_once(model.backbone.vocabulary_size, count)
        nats, _ = model.token_losses(hidden, labels, chunk_size)
        return {"nats": nats}


def token_specs(prefix, batch_size, length):
    """Returns a dictionary of the `tf.TensorSpec`s of sequences of tokens."""
    return {
        f"{prefix}token_ids": tf.TensorSpec([batch_size, length], tf.int32),
        f"{prefix}padding_mask": tf.TensorSpec([batch_size, length], tf.bool),
    }
