import re

import pytest

from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last():
    changes = {
        "steps = 400": "steps = 10",
        "num_layers=2": "num_layers=1",
        "jit_compile=True": "jit_compile=False",
        "[:300_000]": "[:5_000]",
    }
    printed, pictures = checks.run("whole_book", changes)
    assert re.search(r"stateful: \d\.\d+ bits per byte of 5,000 bytes", printed)
    assert re.search(r"5,000 tokens read; the state had \{\d+\} bytes after each chunk", printed)
    assert "▸" in printed
    assert pictures == 1
