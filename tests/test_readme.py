"""The README's code runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def code_blocks():
    """The README's code blocks in order, as (mark in a comment above or "", language, code)."""
    pattern = r"(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)```"
    return re.findall(pattern, README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands run: it has a folder of text to evaluate on."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "tales" / "test").mkdir(parents=True)
    (folder / "tales" / "test" / "tale.txt").write_text("Once upon a time. " * 40)
    return folder


def run(command, folder):
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TFDS_DATA_DIR": str(folder / "tfds"),
    }
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.end_to_end
def test_python_blocks(folder):
    code = [code for mark, language, code in code_blocks() if (mark, language) == ("", "python")]
    assert len(code) == 4
    assert "Call me" in run([sys.executable, "-c", "\n".join(code)], folder)


@pytest.mark.end_to_end
def test_commands_and_what_they_leave(folder):
    (commands,) = (code for mark, _, code in code_blocks() if mark == "test: commands")
    (after,) = (code for mark, _, code in code_blocks() if mark == "test: after commands")
    printed = run(["bash", "-euc", commands], folder)
    assert "bits per byte" in printed and "def main(" in printed
    assert (folder / "scores.json").is_file()
    assert "tf.Tensor" in run([sys.executable, "-c", after], folder)


def test_every_block_is_run_by_a_test_or_by_ci():
    marks = {"ci: quickstart", "ci: test", "test: commands", "test: after commands"}
    assert {mark for mark, _, _ in code_blocks() if mark} == marks
    for mark, language, _ in code_blocks():
        assert mark or language in ("python", "bibtex")
