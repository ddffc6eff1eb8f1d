"""The code on the pages of the site runs as it stands.

On each page the Python blocks run in order in one namespace, then the commands marked
`<!-- test: commands -->`, then, in a new namespace, Python blocks marked
`<!-- test: after commands -->`. Other commands do not run. A comment such as
`<!-- not run: it needs a GPU -->` leaves a Python block out.
"""

import ast
import re
import shlex
from pathlib import Path

import pytest

import rt_keras
from rt_keras import cli

DOCS = Path(rt_keras.__file__).parents[1] / "docs"
BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n+)?```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MARKS = {"python": r"|test: after commands|not run: \w.*", "bash": r"|test: commands"}
# In the order in which they run.
TESTED = [("", "python"), ("test: commands", "bash"), ("test: after commands", "python")]


def blocks(page):
    """The blocks of a page, as (comment above or "", language, code)."""
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


ALL_PAGES = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
# Its commands are those of `rt-keras quickstart`, which `.ci/run` runs.
WEEKLY = "guides/training.md"
TESTED_PAGES = [
    pytest.param(page, marks=[pytest.mark.weekly] if page == WEEKLY else [])
    for page in ALL_PAGES
    if {x[:2] for x in blocks(page)} & {*TESTED}
]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_each_block_is_python_or_says_why_it_is_not_run(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert len(re.findall("```(?:python|bash)", text)) == len(blocks(page))
    for comment, language, code in blocks(page):
        assert re.fullmatch(MARKS[language], comment), comment
        if language == "python":
            ast.parse(code)


def run_commands(lines):
    """Runs commands of `rt-keras`, which may go on in the next line, in this process."""
    for line in lines.replace("\\\n", "").splitlines():
        program, *words = shlex.split(line)
        assert program == "rt-keras" and cli.main(words) == 0, line


@pytest.mark.slow
@pytest.mark.parametrize("page", TESTED_PAGES)
def test_the_blocks_run_in_order(page, tmp_path, monkeypatch):
    # A folder of text for the commands.
    (tmp_path / "tales" / "test").mkdir(parents=True)
    (tmp_path / "tales" / "test" / "tale.txt").write_text("Once upon a time. " * 40)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    for comment, language in TESTED:
        code = "\n".join(x[2] for x in blocks(page) if x[:2] == (comment, language))
        if language == "python":
            exec(compile(code, page, "exec"), {"__name__": "__main__"})
        else:
            run_commands(code)
