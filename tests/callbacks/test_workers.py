import pytest
import tensorflow as tf

from rt_keras.callbacks.workers import Workers


# Several workers are in tests/training/test_workers.py.
@pytest.mark.parametrize(
    "strategy", [None, tf.distribute.OneDeviceStrategy("CPU:0")], ids=["none", "one device"]
)
def test_one_worker_agrees_with_itself(strategy):
    workers = Workers(strategy or tf.distribute.get_strategy())
    assert workers.is_chief and not workers.are_several and workers.count == 1
    assert workers.any(True) and not workers.any(False)
    assert workers.of_chief(7) == 7
