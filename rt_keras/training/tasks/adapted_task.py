"""The base class of tasks whose models are those of `rt_keras.adapt`."""

from rt_keras.keras_internals import preset_loader
from rt_keras.training.config_fields import changed_values
from rt_keras.training.saved_tasks import adapted_class, load_task, task_folder

# The keys of the section `model` that do not describe a new model.
OWN = ("kind", "preset", "lora_rank", "temperature")


class AdaptedTask:
    """Mixin of tasks whose models `model.preset` names. List it before the base class.

    Training starts from the weights of the preset. With `model.lora_rank`, only low-rank updates of
    the projections that KerasHub's `enable_lora` selects are trained.
    """

    adapts = True
    backbone_class = None

    def check(self, experiment):
        for key, value in changed_values(experiment.model).items():
            if key not in OWN:
                raise ValueError(
                    f"model.{key} is {value!r}, but the model of kind {self.kind} is that of "
                    "model.preset; `rt-keras adapt` sets its heads"
                )
        super().check(experiment)

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
