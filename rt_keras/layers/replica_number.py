"""The number of the current replica."""

import tensorflow as tf


def replica_number():
    """Returns the number of the current replica among those of all workers, from 0.

    Returns:
        An int or a scalar tensor; 0 outside a replica.

    >>> int(replica_number())
    0
    """
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group
