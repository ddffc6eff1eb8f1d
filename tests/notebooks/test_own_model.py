import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    printed, pictures = checks.run("own_model", {"steps = 200": "steps = 10"})
    assert "the loaded model agrees: True" in printed
    assert "the exported model agrees: True" in printed
    assert pictures == 1
