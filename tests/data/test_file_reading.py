import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data.file_reading import list_files, read_json_lines
from tests.data.checks import write_texts

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "people.jsonl"


@settings(max_examples=50)
@given(st.lists(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS))), st.booleans(), st.booleans())
def test_objects_come_back_with_the_numbers_of_their_lines(path, objects, escaped, marked):
    lines = [json.dumps(values, ensure_ascii=escaped) for values in objects]
    text = "\r\n".join(f"{line}\n  " for line in lines)
    path.write_bytes(text.encode("utf-8-sig" if marked else "utf-8"))
    assert list(read_json_lines(path)) == [(1 + 2 * i, x) for i, x in enumerate(objects)]


@pytest.mark.parametrize(
    "line, problem",
    [
        (b'{"name": "Ann"', "it is not JSON (Expecting ',' delimiter"),
        (b'["Ann"]', 'it must be a JSON object. Received: ["Ann"]'),
        (json.dumps(["a" * 70]).encode(), f'it must be a JSON object. Received: ["{"a" * 58}...'),
        (rb'{"name": "\uD83D"}', "it has half of a surrogate pair, which is not a character"),
    ],
)
def test_lines_that_are_no_objects(path, line, problem):
    path.write_bytes(b'{"name": "Bo"}\n\n' + line + b"\n")
    lines = read_json_lines(path)
    assert next(lines) == (1, {"name": "Bo"})
    with pytest.raises(ValueError, match=re.escape(f"people.jsonl, line 3: {problem}")):
        next(lines)


def test_a_line_that_is_not_utf8_is_named(path):
    path.write_bytes(b'{"name": "Bo"}\n{"name": "caf\xe9"}\n')
    with pytest.raises(ValueError, match="people.jsonl is not UTF-8 text: see line 2"):
        list(read_json_lines(path))


def test_files_are_listed_without_hidden_ones_and_what_is_missing_is_told(tmp_path):
    names = [".git/a.txt", "sub/.b.txt", "sub/c.txt", "skip/d.txt", "a.md"]
    write_texts(tmp_path, dict.fromkeys(names, ""))
    assert list_files(tmp_path, ".txt", ["skip"]) == ["sub/c.txt"]
    assert list_files(tmp_path, (".txt", ".md"), ["skip"]) == ["a.md", "sub/c.txt"]
    with pytest.raises(FileNotFoundError, match="must hold .doc or .pdf files"):
        list_files(tmp_path, (".doc", ".pdf"))
