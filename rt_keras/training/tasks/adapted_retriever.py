"""The task of KerasHub's text embedders with heads of this package."""

from rt_keras.models.adapted.tasks import AdaptedTextEmbedder
from rt_keras.training.tasks.adapted_task import AdaptedTask
from rt_keras.training.tasks.retriever import RetrieverTask


class AdaptedRetrieverTask(AdaptedTask, RetrieverTask):
    """`RetrieverTask` for models of `rt_keras.adapt`; see `AdaptedTask`."""

    kind = "adapted_retriever"
    model_class = AdaptedTextEmbedder

    def make_model(self, experiment):
        model = super().make_model(experiment)
        model.temperature = experiment.model.temperature
        model.question_length = experiment.data.question_length
        return model
