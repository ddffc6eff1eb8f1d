"""Training tasks: one object per task. No other code checks for a task.

- `task.py`: the base class.
- `text_task.py`: the base class of tasks on texts.
- `causal_lm.py`, `seq_2_seq_lm.py`, `image_lm.py`, `ctc.py`, `retriever.py`, `reader.py`: the
  tasks.
- `adapted_task.py`, `adapted_causal_lm.py`, `adapted_retriever.py`: the tasks of models of
  `rt_keras.adapt`, and their base class.

A new task is a file here, its entry in `TASKS` and its tests.
"""

from rt_keras.training.tasks.adapted_causal_lm import AdaptedCausalLMTask
from rt_keras.training.tasks.adapted_retriever import AdaptedRetrieverTask
from rt_keras.training.tasks.causal_lm import CausalLMTask
from rt_keras.training.tasks.ctc import CTCTask
from rt_keras.training.tasks.image_lm import ImageLMTask
from rt_keras.training.tasks.reader import ReaderTask
from rt_keras.training.tasks.retriever import RetrieverTask
from rt_keras.training.tasks.seq_2_seq_lm import Seq2SeqLMTask

# The tasks of configurations, by `model.kind`.
TASKS = {
    task.kind: task
    for task in (
        CausalLMTask(),
        Seq2SeqLMTask(),
        ImageLMTask(),
        CTCTask(),
        RetrieverTask(),
        ReaderTask(),
        AdaptedCausalLMTask(),
        AdaptedRetrieverTask(),
    )
}


def task_of(model):
    """Returns the task of a model.

    Args:
        model: an instance of the `model_class` of a task.

    Returns:
        A `rt_keras.training.tasks.task.Task`.

    Raises:
        ValueError: if no task has a model of this class.
    """
    tasks = {task.model_class: task for task in TASKS.values()}
    for cls in type(model).__mro__:
        if cls in tasks:
            return tasks[cls]
    names = ", ".join(task.model_class.__name__ for task in TASKS.values())
    raise ValueError(f"model must be one of {names}. Received: a {type(model).__name__}")
