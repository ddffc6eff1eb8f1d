"""The task, the model and the optimizer of a configuration."""

import functools

import keras

from rt_keras.training.saved_tasks import class_name, load_task, task_folder
from rt_keras.training.schedule import make_schedule
from rt_keras.training.tasks import TASKS, task_of_kind


class Experiment:
    """A configuration with its task, and the objects that it describes.

    Args:
        config: an `ExperimentConfig`.

    Attributes:
        config: the configuration.
        model, data, trainer: the sections of these names.
        task: the `rt_keras.training.tasks.task.Task` of `model.kind`.

    >>> from rt_keras.training.config import make_config
    >>> experiment = Experiment(make_config({"model.hidden_dim": 64}))
    >>> experiment.task.loss_name, experiment.vocabulary_size
    ('nats_per_token', 258)
    >>> type(experiment.make_model()).__name__
    'RoutingTransformerCausalLM'
    """

    def __init__(self, config):
        self.config = config
        self.model, self.data, self.trainer = config.model, config.data, config.trainer
        self.task = task_of_kind(config.model.kind)

    @functools.cached_property
    def preprocessor(self):
        """The preprocessor of the model, with its tokenizer; None if it needs none.

        Raises:
            ValueError: if `model.vocabulary_size` is less than the tokenizer's.
        """
        return self.task.make_preprocessor(self)

    @functools.cached_property
    def vocabulary_size(self):
        """The number of token ids. Reads a vocabulary only if `model.vocabulary_size` is null."""
        return self.model.vocabulary_size or self.task.token_ids(self.preprocessor)

    @property
    def is_strictly_causal(self):
        """True if no output of the model depends on later positions."""
        if self.model.hparams is not None:
            from rt_keras.convert.t2t.hparams import is_strictly_causal

            return is_strictly_causal(self.task.hparams(self.model))
        # Encoders say so.
        if getattr(self.task.backbone_class, "cached_decoding", True) is False:
            return False
        groups = self.task.head_groups(self.model)
        decoder = keras.tree.flatten(groups["head_groups"])
        cross = keras.tree.flatten(groups.get("cross_head_groups", []))
        decodes = all(heads.abilities.cached for heads in decoder)
        return decodes and all(heads.abilities.across for heads in cross)

    def load_split(self, split):
        """Loads the examples of "train", "validation" or "test" as a `tf.data.Dataset`."""
        return self.task.load_split(self.data, split, self.preprocessor)

    def training_batches(self, first_step=0, share=(0, 1)):
        """Returns endless batches of the training split, for `fit`. Packs the split if needed.

        Batch b depends only on the data, `trainer.seed`, `data.batch_size` and b.

        Args:
            first_step: int, the index of the first batch. Defaults to 0.
            share: pair of ints (worker, workers), to read only one of `workers` equal parts of each
                batch. Defaults to (0, 1), the whole batch.

        Returns:
            A `tf.data.Dataset` of (inputs, labels, weights).
        """
        order = {"batch_size": self.data.batch_size, "seed": self.trainer.seed}
        return self.task.training_batches(self, **order, first_batch=first_step, share=share)

    def make_model(self):
        """Creates the model, with new weights or, if it is adapted, those of `model.preset`.

        It has no preprocessor, because the batches of the task are already preprocessed.

        Returns:
            A model of the task's `model_class`.
        """
        return self.task.make_model(self)


def load_model(path, dtype=None):
    """Loads the best model of a run, or the model of a preset.

    Args:
        path: folder of the run or the preset.
        dtype: dtype policy. Defaults to None, for Keras's global policy, or that of an adapted
            model.

    Returns:
        A model of one of `rt_keras.training.tasks`.

    Raises:
        FileNotFoundError: if the folder holds neither.
        ValueError: if it holds a model of another project, or a damaged file.

    >>> import tempfile
    >>> from rt_keras.training.config import make_config
    >>> config = make_config({"model.num_layers": 1, "model.hidden_dim": 16})
    >>> model = Experiment(config).make_model()
    >>> folder = tempfile.mkdtemp()
    >>> model.save_to_preset(folder)
    >>> loaded = load_model(folder)
    >>> type(loaded).__name__, loaded.count_params() == model.count_params()
    ('RoutingTransformerCausalLM', True)
    """
    folder = task_folder(path)
    name = class_name(folder)
    for task in map(task_of_kind, TASKS):
        if task.model_class.__name__ == name:
            return load_task(task.model_class, folder, dtype)
    from rt_keras.training.tasks.adapted_task import adapted_class

    return load_task(adapted_class(folder), folder, dtype)


def start_from(model, path):
    """Copies the weights of a trained model to a new one.

    If the class of the new model is that of the trained one or a subclass, all weights are copied.
    Otherwise, only the weights of the backbone are.

    Args:
        model: the new model.
        path: folder of the run or the preset with the trained model.

    Raises:
        FileNotFoundError: as for `load_model`.
        ValueError: as for `load_model`, or if the weights differ in number or shape.

    >>> import tempfile
    >>> from rt_keras.training.config import make_config
    >>> experiment = Experiment(make_config({"model.num_layers": 1, "model.hidden_dim": 16}))
    >>> trained, new = experiment.make_model(), experiment.make_model()
    >>> folder = tempfile.mkdtemp()
    >>> trained.save_to_preset(folder)
    >>> start_from(new, folder)
    >>> bool(keras.ops.all(new.weights[0] == trained.weights[0]))
    True
    """
    trained = load_model(path)
    if not isinstance(model, type(trained)):
        model, trained = model.backbone, trained.backbone
    try:
        model.set_weights(trained.get_weights())
    except ValueError as error:
        raise ValueError(
            f"model.preset is {str(path)!r}, which holds a model with other weights: {error}"
        ) from None


def make_rate(config):
    """Creates the learning rate schedule of an `ExperimentConfig`."""
    peak, steps = config.optimizer.learning_rate, config.trainer.steps
    return make_schedule(peak=peak, steps=steps, **vars(config.schedule))


def make_optimizer(config):
    """Creates the optimizer of an `ExperimentConfig`, with its learning rate schedule.

    Args:
        config: an `ExperimentConfig`.

    Returns:
        A `keras.optimizers.Optimizer`.

    >>> from rt_keras.training.config import make_config
    >>> type(make_optimizer(make_config({"optimizer.name": "adamw"}))).__name__
    'AdamW'
    """
    optimizer = config.optimizer
    kind = {"adam": "Adam", "adamw": "AdamW", "adafactor": "Adafactor"}[optimizer.name]
    moments = {name: getattr(optimizer, name) for name in ("beta_1", "beta_2", "epsilon")}
    # Its own relative step would replace the schedule.
    adafactor = {"relative_step": False}
    return getattr(keras.optimizers, kind)(
        learning_rate=make_rate(config),
        # None saves Adam and Adafactor a decay by 0. AdamW does not accept None.
        weight_decay=optimizer.weight_decay or (0.0 if kind == "AdamW" else None),
        global_clipnorm=optimizer.global_clipnorm,
        **(adafactor if kind == "Adafactor" else moments),
    )


def add_l2(model, weight):
    """Adds L2 regularization to the loss of a model.

    The term is `weight / 2` times the sum of squares of all trainable weights, except biases of
    dense layers and normalizations, as in Tensor2Tensor.

    Args:
        model: a built model.
        weight: float; 0 adds nothing.
    """
    if weight:
        for variable in model.trainable_variables:
            if variable.name != "bias":
                variable.regularizer = keras.regularizers.L2(weight / 2)
