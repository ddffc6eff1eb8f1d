"""Data of a kind of model, for callers that do not have its task yet."""

from rt_keras.training.tasks import task_named


def load_split(kind, config, split, preprocessor=None):
    """`Task.load_split` of the task of that kind."""
    return task_named(kind).load_split(config, split, preprocessor)


def evaluation_batches(kind, examples, batch_size, preprocessor=None):
    """`Task.evaluation_batches` of the task of that kind."""
    return task_named(kind).evaluation_batches(None, examples, batch_size, preprocessor)
