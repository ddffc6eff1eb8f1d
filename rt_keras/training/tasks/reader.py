"""The task of models that read passages and answer a question."""

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.examples import shuffled_batches
from rt_keras.data.questions import SETS, reading_examples
from rt_keras.training.tasks.text_task import TextTask

# The keys of the lengths of a sequence, which are arguments of the preprocessor.
LENGTHS = ("num_passages", "passage_length", "question_length", "answer_length")


class ReaderTask(TextTask):
    """Predicts each token of an answer from passages, a question and the previous tokens."""

    kind = "reader"
    model_class = models.RoutingTransformerReader
    data_sets = SETS
    examples = "questions"
    generates = "answer"

    backbone_class = models.RoutingTransformerBackbone

    def preprocessor_options(self, experiment):
        return {name: getattr(experiment.data, name) for name in LENGTHS}

    def length(self, experiment):
        data = experiment.data
        passages = data.num_passages * (data.passage_length + 1)
        # With the start token and the ends of the question and the answer.
        return passages + data.question_length + data.answer_length + 3

    def load_split(self, data, split, preprocessor=None):
        questions = data_lib.load_question_answers(data.name, split, data.directory, data.data_dir)
        return reading_examples(questions, preprocessor.num_passages)

    def training_batches(self, experiment, **order):
        place = self.packed_split(experiment.data, passages=experiment.data.num_passages)
        packed = data_lib.pack_examples(experiment.load_split("train"), *place)
        return prepared(shuffled_batches(packed, **order), experiment.preprocessor)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        return prepared(filled_batches(examples, batch_size), preprocessor)
