"""The task of classifiers of texts or pairs of texts."""

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data import labeled_texts
from rt_keras.training.tasks.encoder_task import EncoderTask
from rt_keras.training.tasks.task import batch_spec
from rt_keras.training.tasks.text_task import token_specs


class TextClassifierTask(EncoderTask):
    """Predicts the class of a text, or of a pair of texts.

    A text is truncated to `data.sequence_length` tokens. A pair is truncated to the same total, by
    the `"round_robin"` strategy of KerasHub.
    """

    kind = "text_classifier"
    model_class = models.RoutingTransformerTextClassifier
    keys = (*EncoderTask.keys, "model.num_classes", "model.pooling")
    data_sets = labeled_texts.SETS
    units = (("accuracy", ".4f"), ("nats_per_label", ".4f"))
    label_name = "label"
    examples = "texts"

    def load_split(self, data, split, preprocessor=None):
        return data_lib.load_labeled_texts(data.name, split, data.directory, data.data_dir)

    def training_batches(self, experiment, **order):
        texts = experiment.load_split("train")
        labeled_texts.check_labels(texts, experiment.model.num_classes)
        packed = data_lib.pack_examples(texts, *self.packed_split(experiment.data))
        return data_lib.training_labeled_texts(packed, experiment.preprocessor, **order)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        labeled_texts.check_labels(examples, model.num_classes)
        return data_lib.evaluation_labeled_texts(examples, preprocessor, batch_size)

    def example_spec(self, experiment, batch_size):
        inputs = token_specs("", batch_size, experiment.data.sequence_length)
        return batch_spec(inputs, batch_size)
