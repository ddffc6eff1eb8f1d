import re

import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    printed, pictures = checks.run("from_tensor2tensor", {})
    assert float(re.search(r"largest difference of a logit: (\S+)", printed)[1]) < 2e-5
    assert "bits per byte" in printed and "'It was" in printed
    assert pictures == 1
