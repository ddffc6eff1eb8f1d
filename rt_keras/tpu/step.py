"""The whole training step of a configuration as one program of static shapes."""

import math

import tensorflow as tf


def training_step(config, batch_size):
    """What `fit` runs for a batch, and `CentroidEMA` after it, as one function.

    That is the forward pass, the loss with what layers add to it, gradients, the optimizer's update
    and the metrics; then the update of the centroids. The model is built as for training, so that
    its weights stand in memory once, but nothing is computed with them.

    Args:
        config: an `ExperimentConfig`. Files that it names, but the vocabulary of a tokenizer where
            there is no `model.vocabulary_size`, need not be there.
        batch_size: number of sequences, or images.

    Returns:
        The step as a `tf.function` for XLA, the `tf.TensorSpec`s of its arguments, and the model.

    >>> from rt_keras.training.config import make_config
    >>> config = make_config({"model.num_layers": 1, "model.hidden_dim": 8})
    >>> step, specs, model = training_step(config, batch_size=1)
    >>> specs[-1]
    TensorSpec(shape=(1, 2048), dtype=tf.float32, name=None)
    """
    from rt_keras.callbacks import CentroidEMA
    from rt_keras.callbacks.centroid_ema import routing_heads
    from rt_keras.training import experiment, run

    sized = config.model.vocabulary_size is not None or config.model.kind == "image_lm"
    model = run._compiled_model(
        config, None if sized else experiment.make_tokenizer(config.tokenizer)
    )
    model.optimizer.build(model.trainable_variables)
    callbacks = []
    if routing_heads(model):
        callbacks = [CentroidEMA(**config.centroids.as_dict())]
        callbacks[0].set_model(model)
        callbacks[0].on_train_begin()
        # Makes the callback's own variables, which a compiled function cannot.
        callbacks[0].on_train_batch_end(0)
    example = example_spec(config, batch_size)

    @tf.function(jit_compile=True)
    def step(*tensors):
        logs = model.train_step(tf.nest.pack_sequence_as(example, tensors))
        for callback in callbacks:
            callback.on_train_batch_end(0)
        return logs

    return step, tf.nest.flatten(example), model


def example_spec(config, batch_size):
    """What a training batch is, as `rt_keras.training.datasets.training_batches` makes them.

    Args:
        config: an `ExperimentConfig`.
        batch_size: number of sequences, or images.

    Returns:
        `tf.TensorSpec`s of (inputs, labels, weights).
    """

    def spec(dtype, *shape):
        return tf.TensorSpec([batch_size, *shape], dtype)

    def tokens(prefix, length):
        return {
            f"{prefix}token_ids": spec(tf.int32, length),
            f"{prefix}padding_mask": spec(tf.bool, length),
        }

    length = config.data.sequence_length
    if config.model.kind == "image_lm":
        image = config.model.image
        shape = (image.height, image.width, image.channels)
        inputs = {"images": spec(tf.int32, *shape)}
        if image.num_classes is not None:
            inputs["labels"] = spec(tf.int32)
    elif config.model.kind == "seq_2_seq_lm":
        shape = (length,)
        inputs = tokens("encoder_", config.data.encoder_sequence_length or length)
        inputs |= tokens("decoder_", length)
    else:
        shape = (length,)
        inputs = tokens("", length)
    return inputs, spec(tf.int32, *shape), spec(tf.float32, *shape)


def sizes(model, specs):
    """How large a model and its batch are.

    Args:
        model: a compiled model with its optimizer's variables.
        specs: those of `training_step`.

    Returns:
        A dict: `parameters`, how many numbers are trained; `gradient_bytes`, what their gradients
        weigh; `state_bytes`, what all variables weigh; `tokens`, how many are predicted.
    """
    trained = model.trainable_variables
    return {
        "parameters": sum(math.prod(variable.shape) for variable in trained),
        "gradient_bytes": _weight(trained),
        "state_bytes": _weight(model.variables + model.optimizer.variables),
        "tokens": math.prod(specs[-1].shape),
    }


def _weight(variables):
    """Bytes of variables."""
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables
    )
