"""Devices, and whether TensorFlow's own kernels compute: they decide the fastest way."""

import tensorflow as tf

from rt_keras.keras_internals import compiled_by_xla


def has_accelerator():
    """Returns whether TensorFlow sees a GPU or a TPU."""
    return any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU"))


def has_tpu():
    """Returns whether TensorFlow sees a TPU, for which XLA compiles whole steps."""
    return bool(tf.config.list_physical_devices("TPU"))


def runs_on_cpu_kernels():
    """Returns whether TensorFlow's own kernels compute the next operations, on a CPU.

    These kernels are fast at large products and slow at many small steps, unlike XLA.
    """
    return not (compiled_by_xla() or has_accelerator())
