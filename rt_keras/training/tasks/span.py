"""Answers to questions that are spans of a text, as in SQuAD."""

import numpy as np
import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data import questions as questions_lib
from rt_keras.data.batches import filled_batches
from rt_keras.models.routing_transformer_span_predictor import best_spans
from rt_keras.training.answers import score_answer
from rt_keras.training.tasks.encoder_task import EncoderTask
from rt_keras.training.tasks.task import batch_spec
from rt_keras.training.tasks.text_task import token_specs


class SpanTask(EncoderTask):
    """Predicts the start and the end of the answer to a question in a text.

    Question and text are truncated to `data.sequence_length` tokens together. An answer in the
    truncated part of the text is not learned and counts as not found.
    """

    kind = "span"
    model_class = models.RoutingTransformerSpanPredictor
    keys = (*EncoderTask.keys, "model.max_answer_length")
    data_sets = questions_lib.SETS
    text_units = (("exact_match", ".4f"), ("f1", ".4f"))
    units = (("accuracy", ".4f"), ("nats_per_label", ".4f"))
    label_name = "label"
    examples = "questions"

    def load_split(self, data, split, preprocessor=None):
        return data_lib.load_questions(data.name, split, data_dir=data.data_dir)

    def training_batches(self, experiment, **order):
        questions = questions_lib.with_first_answer(experiment.load_split("train"))
        packed = data_lib.pack_examples(questions, *self.packed_split(experiment.data))
        return data_lib.training_questions(packed, experiment.preprocessor, **order)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        questions = questions_lib.with_first_answer(examples)
        return data_lib.evaluation_questions(questions, preprocessor, batch_size)

    def example_spec(self, experiment, batch_size):
        length = experiment.data.sequence_length
        inputs = token_specs("", batch_size, length)
        inputs["context_mask"] = tf.TensorSpec([batch_size, length], tf.bool)
        return batch_spec(inputs, batch_size, 2)

    def text_scores(self, model, examples, batch_size, preprocessor):
        answer = model.compiled_function("answer", lambda: _make_answer(model, preprocessor))
        texts = examples.map(lambda x: {name: x[name] for name in ("question", "context")})
        answers = []
        for batch, real in filled_batches(texts, batch_size):
            answers += answer(batch).numpy()[: np.count_nonzero(real)].tolist()
        scores = [
            score_answer(
                text.decode("utf-8", errors="replace"),
                [reference.decode("utf-8") for reference in example["answers"]],
            )
            for text, example in zip(answers, examples.as_numpy_iterator(), strict=True)
        ]
        exact_match, f1 = np.mean(scores, axis=0).tolist()
        return {"exact_match": exact_match, "f1": f1}


def _make_answer(model, preprocessor):
    """Returns the compiled function from questions and contexts to answers."""

    @tf.function(autograph=False)
    def answer(batch):
        logits = model(preprocessor(batch), training=False)
        return preprocessor.answers(batch, best_spans(logits, model.max_answer_length))

    return answer
