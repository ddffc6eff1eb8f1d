"""Answers to questions, from a configuration to batches."""

import pytest

from rt_keras.training.config import make_config
from rt_keras.training.tasks import TASKS
from tests.data.checks import write_questions
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified


@pytest.mark.weekly
def test_batches_are_as_specified(tmp_path):
    write_questions(tmp_path, train=8, validation=5)
    settings = {**TINY, "model.kind": "span", "data.name": "squad", "data.data_dir": str(tmp_path)}
    assert_batches_are_as_specified(make_config({**settings, "data.sequence_length": 32}))
    with pytest.raises(ValueError, match="for kind span it must be squad or squad/v1.1$"):
        TASKS["span"].data_named("books")
