import pytest

from tests.models.adapted.llama_folder import write_llama
from tests.notebooks import checks

pytestmark = pytest.mark.end_to_end


def test_it_runs_from_its_first_cell_to_its_last(tmp_path):
    folder = write_llama(tmp_path / "llama", max_position_embeddings=4096)
    changes = {
        '"gemma-3-270m"': repr(str(folder)),
        'sampler="greedy"': 'sampler="greedy", jit_compile=False',
        "[:12000]": "[:1500]",
        "tokens[:4000]": "tokens[:1200]",
    }
    printed, pictures = checks.run("long_text", changes)
    assert pictures == 1
    # With the blocks, and without them.
    assert printed.count("barrel of") >= 2
