"""The timed training step and forward pass of a speech recognizer with one kind of heads."""


def prepare(kind, what, length, layers, width, keys):
    """Prepares a training step, or a forward pass, of one sequence.

    Args:
        kind: string, a key of `kinds.MEANINGS`.
        what: string, "step" or "forward".
        length: int, positions in the sequence.
        layers, width, keys: see `rt_keras.benchmarks.speech`.

    Returns:
        A function without arguments that runs it.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from rt_keras.benchmarks.speech.kinds import model_keys
    from rt_keras.training.config import make_config
    from rt_keras.training.experiment import Experiment
    from rt_keras.training.run import compiled_model

    keras.utils.set_random_seed(0)
    sizes = model_keys(kind, layers, width, keys, length)
    experiment = Experiment(make_config({**sizes, "data.batch_size": 1}))
    model = compiled_model(experiment)
    draw = np.random.default_rng(0)
    inputs, labels, _ = experiment.task.example_spec(experiment, 1)
    features = draw.normal(size=inputs["features"].shape).astype("float32")
    batch = {
        "features": tf.constant(features),
        "padding_mask": tf.ones(inputs["padding_mask"].shape, tf.int32),
    }
    texts = tf.constant(draw.integers(2, 60, labels.shape), tf.int32)
    if what == "forward":
        return lambda: model.compiled_logits(batch).numpy()
    return lambda: model.train_on_batch(batch, texts)
