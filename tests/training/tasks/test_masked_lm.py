"""Masked language models, from a configuration to a score."""

import pytest

from rt_keras.training.config import make_config
from tests.training.tasks.checks import assert_batches_are_as_specified


@pytest.fixture(scope="module")
def settings(tiny_settings):
    return {**tiny_settings, "model.kind": "masked_lm", "data.mask_rate": 0.25}


def test_batches_are_as_specified(settings):
    assert_batches_are_as_specified(make_config(settings))
