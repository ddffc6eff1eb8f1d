import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    changes = {"draw(9600)": "draw(320)", "steps=200": "steps=3"}
    printed, pictures = checks.run("adapt", changes)
    assert pictures == 1
    assert "a window and a cluster:" in printed and "of 37" in printed
