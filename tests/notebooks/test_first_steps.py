import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    printed, pictures = checks.run("first_steps", {"steps_per_epoch=100": "steps_per_epoch=4"})
    assert "0.00% of" in printed and "def " in printed
    assert pictures == 1
