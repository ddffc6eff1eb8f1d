import gzip
import stat

import pytest

from rt_keras.data import manual_pages
from rt_keras.data.parallel_documents import ParallelDocuments

# Prints what it reads as a manual page: a title, bold text, a table, and a date below.
PROGRAM = """#!/bin/sh
echo "title(1)"
sed 's/bold/b\\x08bo\\x08ol\\x08ld\\x08d/'
echo "date"
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    path = tmp_path / "bin" / "mandoc"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")


@pytest.fixture
def languages(tmp_path):
    for name, pages in {
        "en": {"man1/a.1.gz": "a bold\ntext", "man2/b.2": "one", "man3/alone.3": "x"},
        "de": {"man1/a.1": "ein\n\n\n\nText", "man2/b.2.gz": "eins\tzwei     " + "─" * 50},
    }.items():
        same = {"man1/same.1": ".so man1/a.1", "man2/b_again.2": pages.get("man2/b.2", "zwei")}
        for page, text in {**pages, **same}.items():
            path = tmp_path / name / page
            path.parent.mkdir(parents=True, exist_ok=True)
            content = f"{text}\n".encode()
            path.write_bytes(gzip.compress(content) if page.endswith(".gz") else content)
    return tmp_path / "en", tmp_path / "de"


def run(capsys, *arguments):
    status = manual_pages.main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_pages_in_both_languages_become_text(languages, tmp_path, capsys):
    status, output, _ = run(capsys, *languages, tmp_path / "out")
    assert status == 0 and output == (
        "2 pages in both languages; left out: 0 that cannot be read and 1 with the text of another "
        "page\n"
    )
    texts = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_text(encoding="utf-8")
        for path in (tmp_path / "out").rglob("*.txt")
    }
    assert texts == {
        "source/man1/a.1.txt": "a bold\ntext",
        "source/man2/b.2.txt": "one",
        "target/man1/a.1.txt": "ein\n\nText",
        "target/man2/b.2.txt": "eins\tzwei  " + "─" * 8,
    }
    builder = ParallelDocuments(tmp_path / "out", data_dir=tmp_path)
    assert builder.split_note.startswith("2 pairs of documents")


def test_pages_that_cannot_be_read_are_left_out_and_counted(languages, tmp_path, capsys):
    page = languages[0] / "man1" / "a.1.gz"
    page.write_bytes(page.read_bytes()[:-9])
    status, output, _ = run(capsys, *languages, tmp_path / "out")
    assert status == 0 and output.startswith("1 pages in both languages; left out: 1 that")


def test_what_is_missing_is_told_in_one_line(languages, tmp_path, capsys, monkeypatch):
    status, _, error = run(capsys, languages[0], tmp_path / "nowhere", tmp_path / "out")
    assert status == 1 and error.startswith("error: no manual page is in both")
    monkeypatch.setenv("PATH", "")
    status, _, error = run(capsys, *languages, tmp_path / "out")
    assert status == 1 and error.startswith("error: neither mandoc nor groff is installed")
    assert not (tmp_path / "out").exists()
