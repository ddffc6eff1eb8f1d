"""The project's text avoids the phrases in `phrases.yaml`, also where they are on two lines."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PHRASES = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))
FOLDERS = ("rt_keras", "tests", "docs", "configs", "export", "notebooks")
SUFFIXES = (".py", ".md", ".rst", ".ipynb", ".sh", ".yaml", ".toml", ".in")
# Quotes and signs of comments, which may be between the lines of a text.
BETWEEN_WORDS = re.compile(r"[\"'#\s]+")


def paths():
    """The files with text, except for the list of phrases."""
    inside = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in [*inside, *sorted(ROOT.iterdir()), ROOT / ".ci" / "run"]:
        if (path.suffix in SUFFIXES or path.name == "run") and path.name != "phrases.yaml":
            yield path


def found_in(path):
    """Yields "file: phrase with the text around it; use: ..." for each phrase in a file."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    text = BETWEEN_WORDS.sub(" ", text)
    for phrase in PHRASES:
        if not any(fnmatch(name, glob) for glob in phrase.get("allowed", ())):
            for match in re.finditer(phrase["phrase"], text, re.IGNORECASE):
                around = text[max(match.start() - 30, 0) : match.end() + 30]
                yield f'{name}: "{match[0]}" in "{around}"; use: {phrase["use"]}'


@pytest.mark.slow
def test_the_text_avoids_these_phrases():
    found = [message for path in paths() for message in found_in(path)]
    assert not found, "\n".join(found)
