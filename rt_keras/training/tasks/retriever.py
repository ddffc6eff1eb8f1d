"""The tasks of retrievers: text embedders that find the passage that answers a question."""

import keras
import numpy as np
import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.examples import shuffled_batches
from rt_keras.data.questions import SETS, retrieval_pairs
from rt_keras.models.retrieval.contrastive import (
    InBatchLoss,
    found_in_batch,
    pair_inputs,
    scores_of_batch,
)
from rt_keras.training.tasks.task import batch_spec, label_nats
from rt_keras.training.tasks.text_task import TextTask

# Numbers of passages among which the right one counts as found.
RANKS = (1, 5, 20)


class RetrieverTask(TextTask):
    """Finds the passage of a question among the passages of a batch.

    The other passages of the batch, and `data.num_negatives` passages of each question that do not
    answer it, are the wrong ones. In the scores of texts, they are the other passages of the split.
    """

    kind = "retriever"
    model_class = models.RoutingTransformerTextEmbedder
    data_sets = SETS
    units = (("accuracy", ".4f"), ("nats_per_question", ".4f"))
    text_units = (
        *((f"recall_at_{rank}", ".4f") for rank in RANKS),
        ("mean_reciprocal_rank", ".4f"),
    )
    label_name = "question"
    examples = "questions"
    generates = "embedding"

    def check(self, experiment):
        super().check(experiment)
        parts = experiment.trainer.gradient_accumulation_steps
        if parts != 1:
            raise ValueError(
                f"trainer.gradient_accumulation_steps is {parts}; for kind {self.kind} it must be "
                "1, since a question is compared with all passages of a batch"
            )

    def make_model(self, experiment):
        model = super().make_model(experiment)
        model.question_length = experiment.data.question_length
        return model

    def load_split(self, data, split, preprocessor=None):
        questions = data_lib.load_question_answers(data.name, split, data.directory, data.data_dir)
        # The other splits need none: there, a question is compared with all passages.
        return retrieval_pairs(questions, data.num_negatives if split == "train" else 0)

    def training_batches(self, experiment, **order):
        data, length = experiment.data, experiment.data.question_length
        place = self.packed_split(data, negatives=data.num_negatives)
        packed = data_lib.pack_examples(experiment.load_split("train"), *place)
        return _prepared(shuffled_batches(packed, **order), experiment.preprocessor, length)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        return _prepared(filled_batches(examples, batch_size), preprocessor, model.question_length)

    def example_spec(self, experiment, batch_size):
        data = experiment.data
        # A question, and its passages.
        texts = (tf.fill([batch_size, *shape], "") for shape in ([], [1 + data.num_negatives]))
        inputs = pair_inputs(experiment.preprocessor, *texts, data.question_length)
        return batch_spec(tf.nest.map_structure(tf.TensorSpec.from_tensor, inputs), batch_size)

    def loss(self):
        return InBatchLoss()

    def loss_metric(self):
        return keras.metrics.MeanMetricWrapper(InBatchLoss(reduction=None), name=self.loss_name)

    def metrics(self):
        return [keras.metrics.MeanMetricWrapper(found_in_batch, name="accuracy")]

    def figures(self, model, inputs, labels):
        embeddings = model(inputs, training=False)
        scores, own = scores_of_batch(labels, embeddings)
        return {"nats": label_nats(scores, own), "correct": found_in_batch(labels, embeddings)}

    def scores(self, sums, counts):
        return {"accuracy": sums["correct"] / sums["labels"], **super().scores(sums, counts)}

    def text_scores(self, model, examples, batch_size, preprocessor):
        """Computes how often the right passage is among the first of all passages of the split."""
        pairs = list(examples.as_numpy_iterator())
        passages = [pair["passages"][0] for pair in pairs]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(passages))}
        found = model.embed_texts(list(numbers), preprocessor=preprocessor)
        questions = [pair["question"] for pair in pairs]
        queries = model.embed_texts(questions, model.question_length, preprocessor)
        return rank_scores(queries, found, [numbers[text] for text in passages])


def rank_scores(queries, vectors, right):
    """Computes scores of a retriever from the rank of each question's right passage.

    Of passages with equal scores, the right one is the last: a retriever that cannot tell texts
    apart finds none.

    Args:
        queries: float32 `[questions, features]`.
        vectors: float32 `[passages, features]`.
        right: list of int, the number of the right passage of each question.

    Returns:
        A dictionary of floats: "recall_at_1" and so on, the share of questions whose right passage
        is among the first; and "mean_reciprocal_rank", the mean of 1 / rank.

    >>> rank_scores(np.eye(2), np.eye(2), [0, 0])["mean_reciprocal_rank"]
    0.75
    """
    ranks = []
    for start in range(0, len(queries), 256):
        rows = slice(start, start + 256)
        # [questions, passages]
        scores = queries[rows] @ vectors.T
        own = np.take_along_axis(scores, np.array(right[rows])[:, None], axis=1)
        ranks.append(np.sum(scores >= own, axis=1))
    ranks = np.concatenate(ranks)
    found = {f"recall_at_{rank}": float(np.mean(ranks <= rank)) for rank in RANKS}
    return {**found, "mean_reciprocal_rank": float(np.mean(1 / ranks))}


def _prepared(batches, preprocessor, question_length):
    """Returns batches of the inputs of `Contrastive`, labels of 1 and weights."""

    def prepare(batch):
        inputs = pair_inputs(preprocessor, question_length=question_length, **batch)
        ones = tf.ones_like(batch["question"], tf.int32)
        return inputs, ones, ones

    def with_labels(inputs, _, weights):
        # Passages of padding do not count.
        return inputs, tf.cast(weights, tf.int32), weights

    return prepared(batches, prepare).map(with_labels)
