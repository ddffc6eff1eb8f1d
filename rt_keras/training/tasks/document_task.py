"""The base class of tasks on documents, which are texts of any length."""

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras.data.documents import SETS
from rt_keras.data.tokenizer import fingerprint, needs_utf8
from rt_keras.training.tasks.text_task import TextTask


class DocumentTask(TextTask):
    """A task whose examples are documents.

    Documents are concatenated and cut into sequences of `data.sequence_length` tokens.
    """

    data_sets = SETS
    file_set = "text_file"

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

    def count(self, examples):
        counts = data_lib.count_text(examples)
        if counts["bytes"] == 0:
            raise ValueError("there is no text to evaluate: every document is empty")
        return counts
