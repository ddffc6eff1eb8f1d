"""What tasks on texts have in common: a tokenizer, and sequences of a length."""

from pathlib import Path

import tensorflow as tf

from rt_keras.models.chunked_loss import positions_at_once
from rt_keras.training.tasks.task import Task
from rt_keras.training.tokenizer import make_tokenizer


class TextTask(Task):
    """A task whose model predicts the tokens of a text."""

    keys = (
        "model.embedding_dim",
        "model.tie_embeddings",
        "model.embedding_dropout",
        "model.token_dropout",
        "model.max_sequence_length",
        "model.sinusoidal_positions",
        "model.loss_chunk_size",
        "model.shift_tokens",
        "tokenizer.",
        "data.directory",
        "data.sequence_length",
    )
    generates = "text"

    def prompts(self, texts, model, max_length):
        """What the model's `generate` takes.

        Args:
            texts: list of bytes, what a user writes.
            model: a model of the task.
            max_length: int, the most tokens that there will be.

        Returns:
            Prompts.

        Raises:
            ValueError: if a text cannot be read, where `generate` would not say so.
        """
        return texts

    def vocabulary_size(self, config, tokenizer=None):
        if tokenizer is None and config.model.vocabulary_size is not None:
            return config.model.vocabulary_size
        least = self.token_ids(tokenizer or make_tokenizer(config.tokenizer))
        given = config.model.vocabulary_size
        if given is not None and given < least:
            raise ValueError(
                f"model.vocabulary_size is {given}; with this tokenizer it must be at least {least}"
            )
        return given or least

    def token_ids(self, tokenizer):
        """The number of token ids that a model needs for a tokenizer."""
        return tokenizer.vocabulary_size()

    def stacks(self, config):
        length = config.data.sequence_length
        return [("data.sequence_length", length, config.model.num_layers)]

    def predictions(self, config):
        return config.data.sequence_length

    def check(self, config):
        longest, length = config.model.max_sequence_length, config.data.sequence_length
        if longest is not None and longest < length:
            raise ValueError(
                f"model.max_sequence_length is {longest}; it must be at least "
                f"data.sequence_length, {length}, or null"
            )
        model = config.model
        if model.reversible and (model.remat or not model.normalize_first):
            raise ValueError(
                f"model.reversible is true, model.remat {model.remat} and model.normalize_first "
                f"{model.normalize_first}; reversible blocks need remat false, normalize_first true"
            )

    def check_sources(self, config):
        super().check_sources(config)
        tokenizer = config.tokenizer
        if tokenizer.name == "bytes":
            return
        if tokenizer.vocabulary is None:
            raise ValueError(
                f"tokenizer.vocabulary must name a file for tokenizer {tokenizer.name}"
            )
        if not Path(tokenizer.vocabulary).is_file():
            raise ValueError(f"tokenizer.vocabulary is {tokenizer.vocabulary!r}, which is no file")

    def figures(self, model, inputs, labels):
        hidden = model.hidden_states(inputs, False)
        count = labels.shape[0] * labels.shape[1]
        chunk_size = positions_at_once(model.backbone.vocabulary_size, count)
        nats, _ = model.token_losses(hidden, labels, chunk_size)
        return {"nats": nats}


def token_specs(prefix, batch_size, length):
    """The `tf.TensorSpec`s of sequences of tokens, in a dictionary."""
    return {
        f"{prefix}token_ids": tf.TensorSpec([batch_size, length], tf.int32),
        f"{prefix}padding_mask": tf.TensorSpec([batch_size, length], tf.bool),
    }
