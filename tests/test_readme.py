"""Tests that the README is short, its links work, and its code runs unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.adapted.llama_folder import write_llama

README = Path(__file__).parent.parent / "README.md"
MOST_WORDS = 900


def code_blocks():
    """The README's code blocks in order, as (mark in a comment above or "", language, code)."""
    pattern = r"(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)```"
    return re.findall(pattern, README.read_text(encoding="utf-8"), re.DOTALL)


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_links_lead_to_files():
    targets = re.findall(r"\]\((.*?)\)", README.read_text(encoding="utf-8"))
    paths = {target.partition("#")[0] for target in targets if not target.startswith("https://")}
    assert paths and all((README.parent / path).is_file() for path in paths)


@pytest.mark.slow
def test_python_blocks(tmp_path):
    """Uses a tiny Llama instead of the pretrained model."""
    write_llama(
        tmp_path / "SmolLM2-135M", hidden_size=36, num_attention_heads=9, num_key_value_heads=3
    )
    code = [code for mark, language, code in code_blocks() if (mark, language) == ("", "python")]
    assert len(code) == 2
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", "\n".join(code)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "Once upon a time" in result.stdout


def test_every_block_is_run_by_a_test_or_by_ci():
    assert {mark for mark, _, _ in code_blocks() if mark} == {"ci: quickstart", "ci: test"}
    for mark, language, code in code_blocks():
        assert mark or language == "python"
        assert language == "python" or code.startswith("python3 ")
