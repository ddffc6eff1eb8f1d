"""The whole training step of a configuration as one program of static shapes."""

import math

import tensorflow as tf


def training_step(config, batch_size):
    """Makes one function of what `fit` runs for a batch and what `CentroidEMA` does after it.

    It is the forward pass, the loss with those that layers add, the gradients, the optimizer's
    update, the metrics, and the update of the centroids. The model is built as for training, so its
    weights are in memory once, but nothing is computed.

    Args:
        config: an `ExperimentConfig`. The files that it names need not exist, except for the
            tokenizer's vocabulary if there is no `model.vocabulary_size`.
        batch_size: int, the number of sequences or images.

    Returns:
        The step as a `tf.function` for XLA, the list of the `tf.TensorSpec`s of its arguments, and
        the model.

    >>> from rt_keras.training.config import make_config
    >>> config = make_config({"model.num_layers": 1, "model.hidden_dim": 8})
    >>> step, specs, model = training_step(config, batch_size=1)
    >>> specs[-1]
    TensorSpec(shape=(1, 2048), dtype=tf.float32, name=None)
    """
    from rt_keras.callbacks import CentroidEMA
    from rt_keras.callbacks.centroid_ema import routing_heads
    from rt_keras.training.run import compiled_model
    from rt_keras.training.tasks import task_named

    model = compiled_model(config)
    model.optimizer.build(model.trainable_variables)
    centroid_ema = None
    if routing_heads(model):
        centroid_ema = CentroidEMA(**config.centroids.as_dict())
        centroid_ema.set_model(model)
    example = task_named(config.model.kind).example_spec(config, batch_size)

    @tf.function(jit_compile=True)
    def step(*tensors):
        logs = model.train_step(tf.nest.pack_sequence_as(example, tensors))
        if centroid_ema is not None:
            centroid_ema.update_centroids()
        return logs

    return step, tf.nest.flatten(example), model


def sizes(model, specs):
    """The sizes of a model and its batch.

    Args:
        model: a compiled model whose optimizer is built.
        specs: list of `tf.TensorSpec`s; see `training_step`.

    Returns:
        A dictionary of ints: `parameters`, the number of trainable weights; `gradient_bytes`, the
        size of their gradients; `state_bytes`, the size of all variables; `tokens`, the number of
        predicted tokens.
    """
    trained = model.trainable_variables
    return {
        "parameters": sum(math.prod(variable.shape) for variable in trained),
        "gradient_bytes": _weight(trained),
        "state_bytes": _weight(model.variables + model.optimizer.variables),
        "tokens": math.prod(specs[-1].shape),
    }


def _weight(variables):
    """The size of variables in bytes."""
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables
    )
