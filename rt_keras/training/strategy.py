"""The distribution strategy of a run."""

import os

from rt_keras.data import extras

STRATEGIES = ("one_device", "mirrored", "tpu")


def make_strategy(name, tpu_address=None):
    """Creates the strategy that distributes training over devices.

    If the environment variable `TF_CONFIG` names several workers, which train one model together,
    all of them call this function before TensorFlow computes anything. It returns once they are
    connected.

    Args:
        name: string: "one_device" for a GPU or the CPU of this machine, "mirrored" for all of its
            GPUs, "tpu" for a TPU. Workers of `TF_CONFIG` use all of their GPUs, or the CPU, unless
            it is "tpu".
        tpu_address: string, the name or address of the TPU. Defaults to None.

    Returns:
        A `tf.distribute.Strategy`.
    """
    import tensorflow as tf

    if os.environ.get("TF_CONFIG") and name != "tpu":
        return tf.distribute.MultiWorkerMirroredStrategy()
    with extras.needed("train", "Making a distribution strategy"):
        from official.common import distribute_utils

    num_gpus = len(tf.config.list_physical_devices("GPU"))
    return distribute_utils.get_distribution_strategy(
        name,
        num_gpus=min(num_gpus, 1) if name == "one_device" else num_gpus,
        tpu_address=tpu_address,
    )
