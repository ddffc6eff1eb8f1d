"""The tasks of the quality benchmark, one a file."""

from rt_keras.benchmarks.quality.tasks.listops import ListOps
from rt_keras.benchmarks.quality.tasks.mqar import MultiQueryRecall
from rt_keras.benchmarks.quality.tasks.recall import Recall
from rt_keras.benchmarks.quality.tasks.ruler import (
    CommonWords,
    FrequentWords,
    MultiKeyNeedle,
    Needle,
    VariableTracking,
)
from rt_keras.benchmarks.quality.tasks.text import Text

TASKS = {
    task.name: task
    for task in (
        Recall,
        MultiQueryRecall,
        ListOps,
        Needle,
        MultiKeyNeedle,
        VariableTracking,
        CommonWords,
        FrequentWords,
        Text,
    )
}
