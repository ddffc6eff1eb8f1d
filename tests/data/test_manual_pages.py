import gzip

from rt_keras.data import manual_pages

# Prints what it reads as a manual page: a title, bold text, and a date below.
PROGRAM = "#!/bin/sh\necho 'title(1)'\nsed 's/bold/b\\x08bo\\x08ol\\x08ld\\x08d/'\necho date\n"


def test_pages_in_both_languages_become_text(tmp_path, capsys, monkeypatch):
    pages = {"en/man1/a.1.gz": "a bold\ntext", "en/man3/alone.3": "x", "de/man1/a.1": "a\n\n\nb"}
    for name, text in {**pages, "bin/mandoc": PROGRAM}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        content = f"{text}\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (tmp_path / "bin" / "mandoc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    arguments = [str(tmp_path / name) for name in ("en", "de", "out")]
    assert manual_pages.main(arguments) == 0
    assert capsys.readouterr().out.startswith("1 pages in both languages; left out: 0 that")
    assert (tmp_path / "out/source/man1/a.1.txt").read_text() == "a bold\ntext"
    assert (tmp_path / "out/target/man1/a.1.txt").read_text() == "a\n\nb"
    assert manual_pages.main([arguments[0], str(tmp_path / "nowhere"), str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err.startswith("error: no manual page is in both")
