"""What the workers of a run have to agree on."""

import zlib

import tensorflow as tf


class Workers:
    """The processes that train a model together under a `tf.distribute` strategy.

    Under `MultiWorkerMirroredStrategy` there are several, and all of them have to call these
    methods at the same steps. Under other strategies there is one.

    Args:
        strategy: a `tf.distribute.Strategy`.

    Attributes:
        is_chief: bool, whether this is the worker that writes the files of the run.
        count: int, the number of workers.

    >>> workers = Workers(tf.distribute.get_strategy())
    >>> workers.is_chief, workers.any(False), workers.of_chief(5)
    (True, False, 5)
    """

    def __init__(self, strategy):
        self.strategy = strategy
        self.is_chief = strategy.extended.should_checkpoint
        self.are_several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        replicas = strategy.num_replicas_in_sync
        # Those of this worker.
        self._replicas = len(strategy.extended.worker_devices) if self.are_several else replicas
        self.count = replicas // self._replicas
        self._add_up = tf.function(self._sum_over_replicas)

    def any(self, flag):
        """Whether a flag is set on any worker.

        Args:
            flag: bool, that of this worker.

        Returns:
            bool, the same on all workers.
        """
        return self._sum(int(flag)) > 0

    def of_chief(self, number):
        """The chief's value of a number.

        Args:
            number: int, that of this worker.

        Returns:
            int, the same on all workers.
        """
        return self._sum(number if self.is_chief else 0)

    def check_equal(self, name, text):
        """Raises a ValueError on each worker where a text is not the chief's.

        Args:
            name: string, what the error calls the text.
            text: string, that of this worker.

        Raises:
            ValueError: if it is not the chief's.
        """
        total = zlib.crc32(text.encode("utf-8"))
        if self.of_chief(total) != total:
            raise ValueError(f"{name} of this worker is not that of the chief; make them the same")

    def _sum(self, number):
        if not self.are_several:
            return number
        # All replicas of this worker add its number.
        return int(self._add_up(tf.constant(number, tf.int64))) // self._replicas

    def _sum_over_replicas(self, number):
        numbers = self.strategy.run(tf.identity, [number])
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)
