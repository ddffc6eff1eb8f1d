"""What tasks on documents have in common: texts of any length, packed one after the other."""

import functools

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras.data import documents as documents_lib
from rt_keras.data.tokenizer import fingerprint, needs_utf8
from rt_keras.training.tasks.text_task import TextTask


class DocumentTask(TextTask):
    """A task whose examples are documents.

    They are put one after the other, and the result is cut into sequences of `data.sequence_length`
    tokens.
    """

    data_names = f"one of {', '.join(documents_lib.NAMES)}"
    folder_sets = documents_lib.OF_FOLDERS
    file_set = "text_file"

    def knows_data(self, name):
        return name in documents_lib.NAMES

    def load_split(self, data, split, preprocessor=None):
        documents = data_lib.load_documents(
            data.name,
            split,
            directory=data.directory,
            data_dir=data.data_dir,
            require_utf8=needs_utf8(preprocessor.tokenizer),
        )
        # Mostly, this reads the first document.
        texts = documents.filter(lambda text: tf.strings.length(text) > 0).take(1)
        if not list(texts):
            raise ValueError(
                f"the {split} split of {data.name} has no text: all of its documents are empty"
            )
        return documents

    def make_builder(self, data):
        return documents_lib.make_builder(data.name, data.directory, data.data_dir)

    def sequences(self, config, preprocessor, first_step, share):
        """Endless batches of the training split; see `training_dataset` and `carried_dataset`."""
        tokenizer = preprocessor.tokenizer
        documents = self.load_split(config.data, "train", preprocessor)
        place = self.packed_split(config.data, tokenizer=fingerprint(tokenizer))
        batches = data_lib.training_dataset
        if config.trainer.carry_state:
            batches = functools.partial(
                data_lib.carried_dataset, state_dropout=config.trainer.state_dropout
            )
        return batches(
            data_lib.pack_documents(documents, tokenizer, *place),
            config.data.sequence_length,
            batch_size=config.data.batch_size,
            seed=config.trainer.seed,
            first_batch=first_step,
            share=share,
        )

    def count(self, examples):
        counts = data_lib.count_text(examples)
        if counts["bytes"] == 0:
            raise ValueError("there is no text to evaluate: every document is empty")
        return counts
