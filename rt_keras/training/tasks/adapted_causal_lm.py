"""The task of KerasHub's language models with heads of this package."""

import dataclasses

from rt_keras import data as data_lib
from rt_keras import files
from rt_keras.config_files import flatten
from rt_keras.keras_internals import preset_loader
from rt_keras.models.adapted.causal_lm import AdaptedCausalLM
from rt_keras.models.adapted.token_scores import LOGITS_CHUNK
from rt_keras.models.generation import check_texts
from rt_keras.models.model_section import ModelSection
from rt_keras.training.saved_tasks import adapted_class, load_task, task_folder
from rt_keras.training.tasks.causal_lm import CausalLMTask

# The keys of the section `model` that do not describe a new model.
OWN = ("kind", "preset", "lora_rank")


class AdaptedCausalLMTask(CausalLMTask):
    """`CausalLMTask` for models of `rt_keras.adapt`, which `model.preset` names.

    Training starts from the weights of the preset. With `model.lora_rank`, only low-rank updates of
    the projections that KerasHub's `enable_lora` selects are trained.

    Every sequence begins with the start token of KerasHub's tokenizer, as in the training of these
    models. Without it, the loss of Gemma 3 is half a nat per token higher.
    """

    kind = "adapted_causal_lm"
    model_class = AdaptedCausalLM
    keys = ("data.directory", "data.sequence_length", "model.lora_rank")
    attentions = ("decoder",)
    adapts = True

    def check(self, experiment):
        defaults = dict(flatten(dataclasses.asdict(ModelSection())))
        for key, value in flatten(dataclasses.asdict(experiment.model)):
            if key not in OWN and value != defaults[key]:
                raise ValueError(
                    f"model.{key} is {value!r}, but the model of kind {self.kind} is that of "
                    "model.preset; `rt-keras adapt` sets its heads"
                )

    def check_sources(self, experiment):
        super().check_sources(experiment)
        _folder(experiment)

    def make_model(self, experiment):
        folder, rank = _folder(experiment), experiment.model.lora_rank
        model = load_task(adapted_class(folder), folder, experiment.config.trainer.dtype)
        model.preprocessor = None
        if rank is not None:
            model.backbone.enable_lora(rank)
        return model

    def sizes(self, experiment):
        config = files.read_json(_folder(experiment) / "config.json")["config"]
        names = ("num_layers", "hidden_dim", "intermediate_dim")
        return ModelSection(loss_chunk_size=LOGITS_CHUNK, **{name: config[name] for name in names})

    def make_preprocessor(self, experiment):
        folder, options = _folder(experiment), self.preprocessor_options(experiment)
        cls = adapted_class(folder).preprocessor_cls
        return preset_loader(str(folder)).load_preprocessor(cls, **options)

    def stacks(self, experiment):
        length = experiment.data.sequence_length
        return [("data.sequence_length", length, self.sizes(experiment).num_layers)]

    def training_batches(self, experiment, **order):
        start = self.start_token(experiment.preprocessor)
        place, length = self.packed(experiment), experiment.data.sequence_length
        return data_lib.training_dataset(place, length, start_token_id=start, **order)

    def prompts(self, texts, model, max_length):
        added = int(model.preprocessor.add_start_token)
        check_texts("prompt", texts, model.preprocessor.tokenizer, max_length, added)
        return [text.decode("utf-8") for text in texts]

    def start_token(self, preprocessor):
        return preprocessor.tokenizer.start_token_id if preprocessor.add_start_token else None


def _folder(experiment):
    """Returns the folder with the task of `model.preset`."""
    if experiment.model.preset is None:
        raise ValueError(
            f"model.preset must be set for kind {experiment.model.kind}, to the folder of a model "
            "that `rt-keras adapt` has written"
        )
    return task_folder(experiment.model.preset)
