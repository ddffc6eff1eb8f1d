"""The batches of a run, and the share of each worker and replica."""

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras.data.arrivals import note_arrivals
from rt_keras.models.training import is_replicated


def training_batches(experiment, strategy, first_step=0, arrivals=None):
    """Returns endless batches of the training split, for `fit`.

    Each worker reads its own rows of each batch.

    Args:
        experiment: an `Experiment`.
        strategy: the `tf.distribute.Strategy` of the run.
        first_step: int, the index of the first batch. Defaults to 0.
        arrivals: variable that records the arrival times of batches; see `rt_keras.data.arrivals`.
            Defaults to None, for no record.

    Returns:
        A `tf.data.Dataset`, or a `tf.distribute.DistributedDataset` if there are several replicas.
    """

    def rows(share):
        batches = experiment.training_batches(first_step, share)
        return batches if arrivals is None else note_arrivals(batches, arrivals)

    return _distributed(rows, experiment.data.batch_size, strategy)


def validation_batches(experiment, model, strategy):
    """Returns the first batches of the validation split. Each prediction counts once.

    Args:
        experiment: an `Experiment`.
        model: its model.
        strategy: the `tf.distribute.Strategy` of the run.

    Returns:
        A data set, as for `training_batches`, and the number of its batches. With
        `trainer.stateful`, a sequence has as many tokens as a replica's whole batch, because tokens
        then also depend on earlier chunks.

    Raises:
        ValueError: if there is nothing to validate on.
    """
    batch_size, preprocessor = experiment.data.batch_size, experiment.preprocessor
    examples = experiment.load_split("validation")
    if experiment.trainer.stateful:
        tokens = experiment.data.sequence_length * batch_size
        batch_size = strategy.num_replicas_in_sync
        batches = data_lib.evaluation_dataset(
            examples, preprocessor.tokenizer, tokens // batch_size, batch_size
        )
    else:
        batches = experiment.task.evaluation_batches(model, examples, batch_size, preprocessor)
    batches = batches.take(experiment.trainer.validation_batches)
    count = int(batches.reduce(0, lambda number, _: number + 1))
    if count == 0:
        raise ValueError(
            f"the validation split of {experiment.data.name} has no {experiment.task.examples} "
            "that the model can read"
        )
    # Keras warns about a finite data set of unknown size.
    batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return shared_batches(batches, batch_size, strategy), count


def shared_batches(batches, batch_size, strategy):
    """Splits whole batches over replicas.

    Args:
        batches: `tf.data.Dataset` of nested tensors `[batch_size, ...]`, the same on all workers.
        batch_size: int, a multiple of the number of replicas.
        strategy: a `tf.distribute.Strategy`.

    Returns:
        A data set, as for `training_batches`.
    """

    def rows(share):
        number, workers = share
        mine = slice(batch_size * number // workers, batch_size * (number + 1) // workers)
        return batches.map(lambda *batch: tf.nest.map_structure(lambda x: x[mine], batch))

    return _distributed(rows, batch_size, strategy)


def _distributed(rows, batch_size, strategy):
    """Returns the data set of this worker. `rows` maps (worker, workers) to a worker's rows."""
    if not is_replicated(strategy):
        return rows((0, 1))

    def of_worker(context):
        share = (context.input_pipeline_id, context.num_input_pipelines)
        size = context.get_per_replica_batch_size(batch_size)
        return rows(share).rebatch(size, drop_remainder=True)

    return strategy.distribute_datasets_from_function(of_worker)
