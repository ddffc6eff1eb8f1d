"""The tasks of the quality benchmark."""

import importlib

# The module and the class of each task.
TASKS = {
    "recall": ("recall", "Recall"),
    "mqar": ("mqar", "MultiQueryRecall"),
    "listops": ("listops", "ListOps"),
    "needle": ("ruler", "Needle"),
    "multi_key_needle": ("ruler", "MultiKeyNeedle"),
    "variable_tracking": ("ruler", "VariableTracking"),
    "common_words": ("ruler", "CommonWords"),
    "frequent_words": ("ruler", "FrequentWords"),
    "text": ("text", "Text"),
}


def make_task(name, length=None, directory=None):
    """Makes a task.

    Args:
        name: string, a key of `TASKS`.
        length, directory: see `rt_keras.benchmarks.quality.tasks.task.Task`.

    Returns:
        A `Task`.

    Raises:
        ValueError: if the task has no sequences of this length.

    >>> make_task("recall").length
    128
    """
    module, cls = TASKS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), cls)(length, directory)
