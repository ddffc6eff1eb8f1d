"""The whole training step of a configuration as one program of static shapes."""

import math

import tensorflow as tf


def lower(config, batch_size, platform=None):
    """The training step of one core, as XLA takes it.

    It is what `fit` runs for a batch: forward pass, loss with what layers add to it, gradients,
    the optimizer's update and the metrics; and after it the update of the centroids, with every
    variable of it an argument that the result takes the place of. The model is built as for
    training, so that its weights stand in memory once, but nothing is computed with them.

    Args:
        config: an `ExperimentConfig`. Files that it names, but a vocabulary without
            `model.vocabulary_size`, need not be there.
        batch_size: number of sequences, or images.
        platform: None for the kernels of this machine; "TPU" for those of TPUs, which only
            TensorFlow for TPUs has.

    Returns:
        A tuple of the `HloModuleProto`, serialized, and a dict: `parameters`, how many numbers are
        trained; `gradient_bytes`, what their gradients weigh; `state_bytes`, what all variables
        weigh; `tokens`, how many the step predicts.

    Raises:
        ValueError: if an operation has no kernel on the platform.
    """
    step, specs, model = training_step(config, batch_size)
    compiler_ir = step.experimental_get_compiler_ir(*specs)
    hlo = compiler_ir(stage="hlo_serialized", platform_name=platform)
    trained = model.trainable_variables
    variables = model.variables + model.optimizer.variables
    figures = {
        "parameters": sum(math.prod(variable.shape) for variable in trained),
        "gradient_bytes": _weight(trained),
        "state_bytes": _weight({id(variable): variable for variable in variables}.values()),
        "tokens": math.prod(specs[-1].shape),
    }
    return hlo, figures


def training_step(config, batch_size):
    """The step as a `tf.function`, the specifications of its arguments, and the model.

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


def _weight(variables):
    """Bytes of variables."""
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables
    )
