"""The base class of training tasks."""

import math
import os
from pathlib import Path

import keras
import tensorflow as tf

from rt_keras.arguments import defaults_of
from rt_keras.data import data_sets
from rt_keras.training.config_fields import located
from rt_keras.training.config_heads import make_heads


class Task:
    """A training task, with everything that depends on it.

    Subclasses set the attributes and implement the methods that raise `NotImplementedError`. A task
    has no state: experiments, models and data are arguments.

    Attributes:
        kind: string, the name of the task and the value of `model.kind`.
        model_class: the class of its models, a `keras_hub.models.Task`.
        data_sets: the `rt_keras.data.data_sets.DataSets` that the task reads. `--data FOLDER`
            selects the first one that is read from a folder.
        file_set: string, the data set that `--data FILE` selects; None if there is none.
        units: pairs of a score and its format, in the order in which they are printed.
        text_units: pairs for the scores of the model's text output; see `text_scores`.
        label_name: string, the name of a label, such as "token".
        examples: string, the name of the task's examples, such as "texts".
        generates: the output of the model, by which commands choose the models that they accept:
            "text", "image", "transcription", "embedding", "answer" or None.
        adapts: bool, whether the model is one of `rt_keras.adapt`, which `model.preset` names.
        continues_text: bool, whether the model continues one text, token by token, so that it can
            be streamed and analyzed for causality.
    """

    kind = None
    model_class = None
    data_sets = None
    file_set = None
    units = (("nats_per_token", ".4f"),)
    text_units = ()
    label_name = "token"
    examples = "examples"
    generates = None
    continues_text = False
    adapts = False

    @property
    def loss_name(self):
        """The name of the mean of -ln p over all labels, in the scores and in the logs."""
        return f"nats_per_{self.label_name}"

    # The model.

    @property
    def backbone_class(self):
        """The class of the backbones of its models."""
        return self.model_class.backbone_cls

    def token_ids(self, preprocessor):
        """Returns the number of token ids that a model with this preprocessor needs."""
        raise NotImplementedError

    def length(self, experiment):
        """Returns the number of tokens in one example."""
        raise NotImplementedError

    def make_model(self, experiment):
        """Creates the model of an experiment; see `Experiment.make_model`."""
        section, make_backbone = experiment.model, self.make_backbone
        options = {"vocabulary_size": experiment.vocabulary_size, "dtype": experiment.trainer.dtype}
        if section.hparams is None:
            options |= self.head_groups(section)
        else:
            make_backbone = self._backbone_of_hparams
        try:
            backbone = make_backbone(section, options)
            return self.model_class(backbone, **arguments_of(self.model_class, section))
        except ValueError as error:
            raise located(error, "model", section.places) from error

    def head_groups(self, section):
        """Returns the arguments of the backbone that are head groups.

        Args:
            section: the section `model` of a configuration.

        Returns:
            Dictionary from names of arguments to lists of head groups.
        """
        return {"head_groups": self._heads_of_blocks(section, section.num_layers)}

    def _heads_of_blocks(self, section, num_layers):
        """Returns the `heads` of all blocks, or a list of those of each, with `lower_heads`."""
        heads = make_heads(section.heads, "model.heads", section.places)
        lower = section.num_lower_layers
        if not lower:
            return heads
        lower_heads = make_heads(section.lower_heads, "model.lower_heads", section.places)
        return [lower_heads] * lower + [heads] * (num_layers - lower)

    def make_backbone(self, section, options):
        """Creates the backbone of a new model.

        Args:
            section: the section `model` of a configuration.
            options: dictionary of arguments that do not have their values in the section.
        """
        return self.backbone_class(**{**arguments_of(self.backbone_class, section), **options})

    def hparams(self, section):
        """Returns the hyperparameters of the paper authors' code that a configuration names."""
        from rt_keras.convert.t2t.hparams import read_hparams

        return read_hparams(section.hparams, image=section.kind == "image_lm")

    def _backbone_of_hparams(self, section, options):
        from rt_keras.convert.t2t.model import make_backbone

        shape = section.image.shape if section.kind == "image_lm" else None
        return make_backbone(
            self.hparams(section), image_shape=shape, remat=section.remat, **options
        )

    # The configuration.

    def check(self, experiment):
        """Raises a ValueError if values of a configuration are incompatible in this task."""

    def check_sources(self, experiment):
        """Raises an error if a configuration does not name a file that training needs."""
        try:
            self.make_builder(experiment.data)
        except (FileNotFoundError, ValueError) as error:
            raise located(error, "data", experiment.model.places) from error

    def data_named(self, name, used=None):
        """Returns keys of the `data` section for a data set, or for a folder or file of examples.

        Args:
            name: string, name of a data set or path of a folder or file.
            used: string, the data set in use, which is kept for another folder if it reads folders;
                None if there is none. Defaults to None.

        Returns:
            A dictionary.

        Raises:
            FileNotFoundError: if `name` looks like a path that does not exist.
            ValueError: if the task has no such data set, or does not read files.
        """
        if name in self.data_sets:
            return {"name": name}
        folder_sets = list(self.data_sets.folders)
        if Path(name).is_dir():
            kept = used if used in folder_sets and used != self.file_set else folder_sets[0]
            return {"name": kept, "directory": str(name)}
        if self.file_set and Path(name).is_file():
            return {"name": self.file_set, "directory": str(name)}
        kinds = "folder or text file" if self.file_set else "folder"
        if os.sep in name and not Path(name).exists():
            raise FileNotFoundError(f"--data is {name}; there is no such {kinds}")
        sets = f"{self.data_sets.words} or a {kinds}"
        raise ValueError(f"--data is {name!r}; for kind {self.kind} it must be {sets}")

    # The data.

    def make_preprocessor(self, experiment):
        """Creates the preprocessor of the model of an experiment; None if it needs none.

        `Experiment.preprocessor` caches it.
        """
        return None

    def load_split(self, data, split, preprocessor=None):
        """Loads the examples of one split of a data set.

        Args:
            data: a `DataConfig`.
            split: "train", "validation" or "test".
            preprocessor: the preprocessor of the model.

        Returns:
            A `tf.data.Dataset`.
        """
        raise NotImplementedError

    def split_note(self, data):
        """Describes in one line how examples without predefined splits are split.

        Args:
            data: a `DataConfig`.

        Returns:
            A string; None if the data set has predefined splits.
        """
        return getattr(self.make_builder(data), "split_note", None)

    def make_builder(self, data):
        """Creates the builder of a data set, which need not be prepared yet.

        Args:
            data: a `DataConfig`.

        Returns:
            A `tfds.core.DatasetBuilder`.
        """
        return self.data_sets.builder(data.name, data.directory, data.data_dir)

    def packed_split(self, data, **more):
        """Returns the folder of the packed training split, and the identity of its examples.

        Args:
            data: a `DataConfig`.
            **more: other JSON values that the examples depend on.

        Returns:
            The `Path` of a folder next to the prepared data set, and a dictionary of JSON values.
        """
        builder = data_sets.prepare(self.make_builder(data))
        split = self.training_split(data)
        identity = {"kind": self.kind, **data_sets.identity(builder, split), **more}
        return data_sets.packed_folder(builder, split, identity), identity

    def training_split(self, data):
        """Returns the name that the training split has in the data set of a `DataConfig`."""
        return "train"

    def training_batches(self, experiment, **order):
        """Returns endless batches of the training split, for `fit`. Packs the split if needed.

        Args:
            experiment: an `Experiment`.
            **order: `batch_size`, `seed`, `first_batch` and `share`; see
                `Experiment.training_batches`.

        Returns:
            A `tf.data.Dataset` of (inputs, labels, weights).
        """
        raise NotImplementedError

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        """Returns batches, in order, in which each prediction of the model has weight 1 once.

        Args:
            model: a model of the task.
            examples: `tf.data.Dataset` as from `load_split`.
            batch_size: int, the number of examples, or of sequences of documents, in a batch.
            preprocessor: the preprocessor of the model.

        Returns:
            A `tf.data.Dataset` of (inputs, labels, weights).
        """
        raise NotImplementedError

    def example_spec(self, experiment, batch_size):
        """Returns the specification of a batch of `training_batches`.

        Args:
            experiment: an `Experiment`.
            batch_size: int.

        Returns:
            `tf.TensorSpec`s of (inputs, labels, weights).
        """
        raise NotImplementedError

    # The scores.

    def count(self, examples):
        """Counts the examples, for the report.

        Args:
            examples: `tf.data.Dataset` as from `load_split`.

        Returns:
            A dictionary of ints.

        Raises:
            ValueError: if there is nothing to score.
        """
        count = int(examples.reduce(0, lambda number, _: number + 1))
        if count == 0:
            raise ValueError(f"there are no {self.examples} to evaluate")
        return {self.examples: count}

    def loss(self):
        """Returns the Keras loss of `fit`."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss_metric(self):
        """Returns the weighted Keras metric `loss_name`, the loss without regularization."""
        return keras.metrics.SparseCategoricalCrossentropy(name=self.loss_name, from_logits=True)

    def metrics(self):
        """Returns a list of weighted Keras metrics for `fit`, in addition to `loss_metric`."""
        return []

    def figures(self, model, inputs, labels):
        """Computes the values to sum over all labels for the scores, in a compiled function.

        Args:
            model: a model of the task.
            inputs: inputs of the model.
            labels: int tensor.

        Returns:
            A dictionary of float32 tensors of the shape of the labels: "nats", -ln p of each label,
            and the other values that `scores` needs.
        """
        return {"nats": label_nats(model(inputs, training=False), labels)}

    def scores(self, sums, counts):
        """Computes the scores of a model.

        Args:
            sums: dictionary of floats, the sums of the values of `figures`, and "labels", the
                number of labels.
            counts: the dictionary that `count` returned.

        Returns:
            A dictionary of floats: the scores in `units`, and `loss_name`.
        """
        return {self.loss_name: sums["nats"] / sums["labels"]}

    def text_scores(self, model, examples, batch_size, preprocessor):
        """Computes the scores in `text_units` from the model's text output.

        Args:
            model, examples, batch_size, preprocessor: see `evaluation_batches`.

        Returns:
            A dictionary of floats.
        """
        return {}


def arguments_of(cls, section):
    """Returns the arguments of a model's constructor that have their values in a configuration.

    Args:
        cls: class of a backbone or a task.
        section: the section `model` of a configuration.

    Returns:
        Dictionary of arguments.
    """
    names = defaults_of(cls.__init__)
    arguments = {name: getattr(section, name) for name in names if hasattr(section, name)}
    if "kernel_initializer" in names and section.initializer_scale != 1.0:
        arguments["kernel_initializer"] = keras.initializers.VarianceScaling(
            section.initializer_scale, "fan_avg", "uniform"
        )
    return arguments


def batch_spec(inputs, *shape):
    """Returns the `tf.TensorSpec`s of a batch, given those of its inputs and a shape of labels."""
    return inputs, tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)


def label_nats(logits, labels):
    """Returns -ln p of each label, float32."""
    logits = tf.cast(logits, tf.float32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def bits(nats):
    """Converts nats to bits.

    >>> bits(math.log(8))
    3.0
    """
    return nats / math.log(2)
