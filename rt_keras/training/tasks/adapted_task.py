"""The base class of tasks whose models are those of `rt_keras.adapt`."""

from rt_keras import models
from rt_keras.keras_internals import preset_loader
from rt_keras.models.adapted.adapted_causal_lm import AdaptedCausalLM
from rt_keras.models.adapted.tasks import TASKS as ADAPTED
from rt_keras.models.adapted.tasks import AdaptedTextEmbedder
from rt_keras.training.saved_tasks import class_name, load_task, task_folder

# Adapted models that commands accept.
ACCEPTED = {AdaptedCausalLM: "causal language models", AdaptedTextEmbedder: "text embedders"}


class AdaptedTask:
    """Mixin of tasks whose models `model.preset` names. List it before the base class.

    Training starts from the weights of the preset. With `model.lora_rank`, only low-rank updates of
    the projections that KerasHub's `enable_lora` selects are trained.
    """

    adapts = True
    backbone_class = None

    def check_sources(self, experiment):
        super().check_sources(experiment)
        folder_of(experiment)

    def make_model(self, experiment):
        folder, rank = folder_of(experiment), experiment.model.lora_rank
        cls = adapted_class(folder, self.model_class)
        model = load_task(cls, folder, experiment.config.trainer.dtype)
        model.preprocessor = None
        if rank is not None:
            model.backbone.enable_lora(rank)
        return model

    def make_preprocessor(self, experiment):
        folder, options = folder_of(experiment), self.preprocessor_options(experiment)
        cls = adapted_class(folder, self.model_class).preprocessor_cls
        return preset_loader(str(folder)).load_preprocessor(cls, **options)


def folder_of(experiment):
    """Returns the folder with the task of `model.preset`."""
    if experiment.model.preset is None:
        raise ValueError(
            f"model.preset must be set for kind {experiment.model.kind}, to the folder of a model "
            "that `rt-keras adapt` has written"
        )
    return task_folder(experiment.model.preset)


def adapted_class(folder, base=None):
    """Returns the class of the adapted model in the folder of a task.

    Args:
        folder: path of the folder.
        base: class that it must be a subclass of. Defaults to None, for any model that commands
            accept.

    Raises:
        ValueError: if it is a model of another kind.
    """
    name, adapted = class_name(folder), {cls.__name__: cls for cls in ADAPTED.values()}
    if name not in adapted:
        more = "; adapt it with `rt-keras adapt`" if name in {x.__name__ for x in ADAPTED} else ""
        kind = "an adapted model" if hasattr(models, name) else "a model of rt_keras"
        raise ValueError(f"{folder} holds a {name}, which is not {kind}{more}")
    if not issubclass(adapted[name], base or tuple(ACCEPTED)):
        accepted = ACCEPTED[base] if base else " and ".join(ACCEPTED.values())
        raise ValueError(
            f"{folder} holds a {name}; among adapted models, only {accepted} can be used here"
        )
    return adapted[name]
