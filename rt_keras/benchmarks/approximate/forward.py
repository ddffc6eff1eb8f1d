"""The timed forward pass of a model with one kind of heads."""


def prepare(kind, length, keys, layers, width, heads):
    """Prepares the forward pass.

    Args:
        kind: string, a key of `kinds.KINDS`.
        length: int, tokens in the sequence.
        keys, layers, width, heads: see `rt_keras.benchmarks.approximate`.

    Returns:
        A function without arguments that runs the forward pass.
    """
    import numpy as np
    import tensorflow as tf

    from rt_keras.benchmarks.approximate import models

    backbone = models.make_backbone(False, length, layers, width, heads)
    model = models.adapted(backbone, kind, keys, length, causal=False)
    tokens = np.random.default_rng(0).integers(256, size=[1, length]).astype(np.int32)
    inputs = models.inputs_of(tf.constant(tokens))
    run = tf.function(lambda: model(inputs, training=False), jit_compile=True)
    return lambda: run().numpy()
