"""Communication between the workers of a run."""

import tensorflow as tf


class Workers:
    """The processes that train a model together under a `tf.distribute` strategy.

    `MultiWorkerMirroredStrategy` has several workers, and all of them must call these methods at
    the same steps. Other strategies have one worker.

    Args:
        strategy: a `tf.distribute.Strategy`.

    Attributes:
        is_chief: bool, whether this worker writes the files of the run.
        are_several: bool, whether the strategy is for several workers.

    >>> workers = Workers(tf.distribute.get_strategy())
    >>> workers.is_chief, workers.any(False), workers.of_chief(5)
    (True, False, 5)
    """

    def __init__(self, strategy):
        self.strategy = strategy
        self.is_chief = strategy.extended.should_checkpoint
        self.are_several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._add_up = tf.function(self._sum_over_replicas, autograph=False)

    def any(self, flag):
        """Returns whether a flag is set on any worker.

        Args:
            flag: bool, the flag of this worker.

        Returns:
            bool, the same on all workers.
        """
        return self._sum(int(flag)) > 0

    def of_chief(self, number):
        """Returns the chief's value of a number.

        Args:
            number: int, the value of this worker.

        Returns:
            int, the same on all workers.
        """
        return self._sum(number if self.is_chief else 0)

    def _sum(self, number):
        if not self.are_several:
            return number
        # All replicas of this worker add its number.
        replicas = len(self.strategy.extended.worker_devices)
        return int(self._add_up(tf.constant(number, tf.int64))) // replicas

    def _sum_over_replicas(self, number):
        numbers = self.strategy.run(tf.identity, [number])
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)
