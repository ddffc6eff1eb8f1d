import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    changes = {"num_layers=2": "num_layers=1", "steps_per_epoch=100": "steps_per_epoch=4"}
    printed, pictures = checks.run("first_steps", changes)
    assert "0.00% of" in printed and "def " in printed
    assert pictures == 1
