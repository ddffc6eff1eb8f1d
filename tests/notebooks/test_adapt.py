import pytest

from tests.models.adapted.llama_folder import write_llama
from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path):
    folder = write_llama(tmp_path / "llama", max_position_embeddings=512)
    changes = {
        "draw(9600)": "draw(320)",
        "steps=200": "steps=3",
        'Path("SmolLM2-135M")': f"Path({str(folder)!r})",
    }
    printed, pictures = checks.run("adapt", changes)
    assert pictures == 1
    assert "a window and a cluster:" in printed and "of 37" in printed
    assert "trained on 512 positions" in printed
    # As adapted, and as loaded again.
    assert printed.count("Once upon a time") == 2
