import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    changes = {
        "num_layers=2": "num_layers=1",
        "steps_per_epoch=200": "steps_per_epoch=4",
        "range(2000)": "range(40)",
    }
    printed, pictures = checks.run("images", changes)
    assert "bits per value" in printed
    assert pictures == 2
