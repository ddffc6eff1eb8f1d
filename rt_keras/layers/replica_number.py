"""Which of several replicas computes."""

import tensorflow as tf


def replica_number():
    """The number of this replica among those of all workers, from 0; 0 outside of any.

    Returns:
        An int or a scalar tensor.

    >>> int(replica_number())
    0
    """
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group
