"""Configurations of runs that an earlier version wrote make the models that they made."""

from pathlib import Path

import numpy as np
import pytest

from tests.layers.checks import close
from tests.models.saved_models import logits
from tests.training import saved_runs

SAVED = Path(__file__).parents[1] / "golden" / "saved"


@pytest.mark.filterwarnings("ignore:With use_causal_mask=True, queries")
@pytest.mark.parametrize("name", saved_runs.RUNS)
def test_a_configuration_and_its_weights_give_what_they_gave(name):
    model = saved_runs.made_of(SAVED / name)
    model.load_weights(SAVED / name / "model.weights.h5")
    close(logits(model), np.load(SAVED / name / "logits.npy"), 1e-5)
