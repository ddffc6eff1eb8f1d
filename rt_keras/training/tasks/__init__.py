"""What models are trained to do: one object per task, the only place that knows what it is.

- `task.py`: what the rest of the project asks of a task.
- `text_task.py`, `document_task.py`, `encoder_task.py`: what tasks on texts, on documents, and
  those of models that see whole sequences have in common.
- `causal_lm.py`, `seq_2_seq_lm.py`, `image_lm.py`, `masked_lm.py`,
  `text_classifier.py`, `span.py`: the tasks.
- `adapted_causal_lm.py`: that of models of `rt_keras.adapt`, which no configuration describes.

A new task is a file here, its entry in `TASKS` and its tests.
"""

from rt_keras.training.tasks.adapted_causal_lm import AdaptedCausalLMTask
from rt_keras.training.tasks.causal_lm import CausalLMTask
from rt_keras.training.tasks.image_lm import ImageLMTask
from rt_keras.training.tasks.masked_lm import MaskedLMTask
from rt_keras.training.tasks.seq_2_seq_lm import Seq2SeqLMTask
from rt_keras.training.tasks.span import SpanTask
from rt_keras.training.tasks.text_classifier import TextClassifierTask

# The tasks of configurations, by `model.kind`.
TASKS = {
    task.kind: task
    for task in (
        CausalLMTask(),
        Seq2SeqLMTask(),
        ImageLMTask(),
        MaskedLMTask(),
        TextClassifierTask(),
        SpanTask(),
    )
}

# Every task that a model can be for.
_OF_MODELS = (*TASKS.values(), AdaptedCausalLMTask())


def task_of(model):
    """The task that a model is for.

    Args:
        model: an instance of the `model_class` of a task.

    Returns:
        A `rt_keras.training.tasks.task.Task`.

    Raises:
        ValueError: if the model is of no task.
    """
    tasks = {task.model_class: task for task in _OF_MODELS}
    for cls in type(model).__mro__:
        if cls in tasks:
            return tasks[cls]
    names = ", ".join(task.model_class.__name__ for task in _OF_MODELS)
    raise ValueError(f"model must be one of {names}. Received: a {type(model).__name__}")
