"""The project's text avoids the phrases in `phrases.yaml`.

The test reads docstrings, comments and strings in Python files, the text cells of notebooks, pages
in Markdown, and comments in other files.
"""

import bisect
import io
import itertools
import json
import re
import tokenize
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PHRASES = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))
FOLDERS = ("rt_keras", "tests", "docs", "configs", "export", "notebooks")
# Names of tokens with text; Python 3.12 splits f-strings.
TEXT = {"COMMENT", "STRING", "FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END"}
# Separates texts that do not belong together.
BREAK = "\0"


def paths():
    """The files with text, except for the list of phrases."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".rst", ".ipynb", ".yaml", ".sh") and path.is_file():
                yield path
    for path in sorted(ROOT.iterdir()):
        if path.suffix in (".py", ".md", ".toml", ".in"):
            yield path
    yield ROOT / ".ci" / "run"


def python_lines(text):
    """Yields (line number, text) of comments and strings, with breaks between statements."""
    last = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name in TEXT:
            if name == "COMMENT" and last != "COMMENT":
                yield token.start[0], BREAK
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield number, line.lstrip("# ") if name == "COMMENT" else unquoted(line)
        elif name not in ("NL", "INDENT", "DEDENT"):
            yield token.start[0], BREAK
        if name not in ("NL", "INDENT", "DEDENT"):
            last = name


def unquoted(line):
    """A line of a string without the quotes and the prefix."""
    return re.sub(r"^[rbfRBF]{0,2}(\"\"\"|\"|')|(\"\"\"|\"|')$", "", line.strip(" "))


def lines(path):
    """Yields (line number, text) of the text in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_lines(text)
    elif path.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            source = "".join(cell["source"])
            yield 1, BREAK
            if cell["cell_type"] == "markdown":
                yield from ((1, line) for line in source.splitlines())
            else:
                yield from ((1, line) for line in re.findall("# (.*)", source))
    elif path.suffix in (".md", ".rst"):
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line or BREAK
    else:
        for number, line in enumerate(text.splitlines(), 1):
            comment = re.search(r"(?:^|\s)#+ (.*)", line)
            yield number, comment[1] if comment else BREAK


def found_in(path, phrases):
    """Yields "file:line: phrase; use ..." for each phrase in a file."""
    numbers, texts = zip(*itertools.chain([(1, BREAK)], lines(path)), strict=True)
    joined = " ".join(texts)
    starts = list(itertools.accumulate((len(text) + 1 for text in texts), initial=0))
    name = path.relative_to(ROOT).as_posix()
    for phrase in phrases:
        if any(fnmatch(name, glob) for glob in phrase.get("allowed", ())):
            continue
        pattern = phrase["phrase"].replace(" ", r"\s+")
        for match in re.finditer(pattern, joined, re.IGNORECASE):
            number = numbers[bisect.bisect(starts, match.start()) - 1]
            words = " ".join(match[0].split())
            yield f'{name}:{number}: "{words}"; use: {phrase["use"]}'


@pytest.mark.slow
def test_the_text_avoids_these_phrases():
    found = [message for path in paths() for message in found_in(path, PHRASES)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.py", 'def f():\n    """Starts\n    backwards."""\n'),
        ("a.py", "\n# It starts\n# backwards.\nx = 1\n"),
        ("a.py", 'x = f(\n    f"{1} starts "\n    "backwards"\n)\n'),
        ("a.md", "# Title\nIt starts\nbackwards.\n"),
        ("a.yaml", "a: 1\nb: 2  # It starts\n# backwards.\n"),
    ],
)
def test_a_phrase_is_found_on_two_lines(name, text, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    phrases = [{"phrase": "starts backwards", "use": "is reversed"}]
    assert list(found_in(tmp_path / name, phrases)) == [
        f'{name}:2: "{text[text.lower().index("starts") :][:6]} backwards"; use: is reversed'
    ]


def test_texts_that_do_not_belong_together_are_not_joined(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.py").write_text('x = {"starts": "backwards"}\ny = "starts"\nz = "backwards"\n')
    (tmp_path / "a.md").write_text("It starts\n\nbackwards.\n")
    phrases = [{"phrase": "starts backwards", "use": "is reversed"}]
    assert not [x for name in ("a.py", "a.md") for x in found_in(tmp_path / name, phrases)]
