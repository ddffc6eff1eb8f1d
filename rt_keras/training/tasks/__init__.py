"""Training tasks: one object per task. No other code checks for a task.

- `task.py`: the base class.
- `text_task.py`: the base class of tasks on texts.
- `causal_lm.py`, `seq_2_seq_lm.py`, `image_lm.py`, `ctc.py`, `retriever.py`, `reader.py`: the
  tasks.
- `adapted_task.py`, `adapted_causal_lm.py`, `adapted_retriever.py`: the tasks of models of
  `rt_keras.adapt`, and their base class.

A new task is a file here, its entry in `TASKS` and its tests.
"""

import functools
import importlib

# The classes of the tasks, by `model.kind`, which is also the name of their file.
TASKS = {
    "causal_lm": "CausalLMTask",
    "seq_2_seq_lm": "Seq2SeqLMTask",
    "image_lm": "ImageLMTask",
    "ctc": "CTCTask",
    "retriever": "RetrieverTask",
    "reader": "ReaderTask",
    "adapted_causal_lm": "AdaptedCausalLMTask",
    "adapted_retriever": "AdaptedRetrieverTask",
}


@functools.cache
def task_of_kind(kind):
    """Imports and returns the task of a `model.kind`, the same object in every call."""
    return getattr(importlib.import_module(f"{__name__}.{kind}"), TASKS[kind])()


def task_of(model):
    """Returns the task of a model.

    Args:
        model: an instance of the `model_class` of a task.

    Returns:
        A `rt_keras.training.tasks.task.Task`.

    Raises:
        ValueError: if no task has a model of this class.
    """
    for cls in type(model).__mro__:
        for task in map(task_of_kind, TASKS):
            if task.model_class is cls:
                return task
    names = ", ".join(task_of_kind(kind).model_class.__name__ for kind in TASKS)
    raise ValueError(f"model must be one of {names}. Received: a {type(model).__name__}")
