"""The whole training step of a configuration as one program of static shapes."""

import contextlib
import math

import tensorflow as tf


def training_step(experiment, batch_size, cores=1):
    """Builds one function of a training step of `fit` and the centroid update after it.

    The function comprises the forward pass, the loss including those that layers add, the
    gradients, the optimizer's update, the metrics, and the update of the centroids. The model is
    built as for training, so its weights are in memory once, but nothing is computed.

    For several cores, the function is the part of one core in a data-parallel run: gradients and
    cluster statistics are summed over the cores.

    Args:
        experiment: an `Experiment`. Its files need not exist, except the tokenizer's vocabulary if
            `model.vocabulary_size` is not set.
        batch_size: int, number of sequences or images per core.
        cores: int, number of cores. Defaults to 1.

    Returns:
        The step as a `tf.function` for XLA, the list of its arguments' `tf.TensorSpec`s, and the
        model.

    >>> from rt_keras.training.config import make_config
    >>> from rt_keras.training.experiment import Experiment
    >>> experiment = Experiment(make_config({"model.num_layers": 1, "model.hidden_dim": 8}))
    >>> step, specs, model = training_step(experiment, batch_size=1)
    >>> specs[-1]
    TensorSpec(shape=(1, 2048), dtype=tf.float32, name=None)
    """
    from rt_keras.callbacks import CentroidEMA
    from rt_keras.callbacks.centroid_ema import routing_heads
    from rt_keras.training.run import compiled_model

    model = compiled_model(experiment)
    model.optimizer.build(model.trainable_variables)
    centroid_ema = None
    if routing_heads(model):
        centroid_ema = CentroidEMA(**vars(experiment.config.centroids))
        centroid_ema.set_model(model)
    example = experiment.task.example_spec(experiment, batch_size)

    @tf.function(jit_compile=True)
    def step(*tensors):
        with OneOfSeveralCores(cores) if cores > 1 else contextlib.nullcontext() as core:
            logs = model.train_step(tf.nest.pack_sequence_as(example, tensors))
            if core is not None:
                for statistic in (x for x in model.weights if x.aggregation == "sum"):
                    statistic.assign(core.all_reduce("SUM", statistic.value))
            if centroid_ema is not None:
                centroid_ema.update_centroids()
        return logs

    return step, tf.nest.flatten(example), model


class OneOfSeveralCores(tf.distribute.ReplicaContext):
    """Replica context of one core in which sums over replicas are XLA operations.

    `tf.distribute.TPUStrategy` creates such sums but requires a TPU. Use this inside a
    `tf.function` with `jit_compile`:

    >>> @tf.function(jit_compile=True)
    ... def total(x):
    ...     with OneOfSeveralCores(4):
    ...         return tf.distribute.get_replica_context().all_reduce("SUM", x)
    >>> "all-reduce" in total.experimental_get_compiler_ir(tf.TensorSpec([3]))("hlo")
    True

    Args:
        cores: int, number of cores.
    """

    def __init__(self, cores):
        super().__init__(tf.distribute.get_strategy(), replica_id_in_sync_group=0)
        self.cores = cores
        self._sums = 0

    def __enter__(self):
        super().__enter__()
        return self

    def all_reduce(self, reduce_op, value, options=None):
        """Sums tensors over all cores; see `tf.distribute.ReplicaContext`.

        Args:
            reduce_op: "SUM" or "MEAN", or a `tf.distribute.ReduceOp`.
            value: tensor or nested structure of tensors. Sparse tensors become dense, as on TPUs.
            options: ignored, as on TPUs.

        Returns:
            The sums or means, in the same structure.
        """
        totals = tf.nest.map_structure(self._sum, value)
        if getattr(reduce_op, "name", reduce_op).upper() == "SUM":
            return totals
        return tf.nest.map_structure(lambda total: total / self.cores, totals)

    def _sum(self, value):
        self._sums += 1
        return tf.raw_ops.CollectiveReduceV2(
            input=tf.convert_to_tensor(value),
            group_size=self.cores,
            group_key=1,
            instance_key=self._sums,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )


def sizes(model, specs):
    """Computes the sizes of a model and its batch.

    Args:
        model: a compiled model whose optimizer is built.
        specs: list of `tf.TensorSpec`s; see `training_step`.

    Returns:
        A dictionary of ints: `parameters`, the number of trainable parameters; `gradient_bytes`,
        the size of their gradients; `state_bytes`, the size of all variables; and `tokens`, the
        number of predicted tokens.
    """
    trained = model.trainable_variables
    return {
        "parameters": sum(math.prod(variable.shape) for variable in trained),
        "gradient_bytes": _weight(trained),
        "state_bytes": _weight(model.variables + model.optimizer.variables),
        "tokens": math.prod(specs[-1].shape),
    }


def _weight(variables):
    """Returns the size of variables in bytes."""
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables
    )
