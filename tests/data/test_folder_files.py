import pytest

from rt_keras.data.folder_files import list_files
from tests.data.checks import write_texts


def test_hidden_files_and_folders_are_left_out(tmp_path):
    names = [".git/a.txt", "sub/.b.txt", "sub/c.txt", "skip/d.txt", "a.md"]
    write_texts(tmp_path, dict.fromkeys(names, ""))
    assert list_files(tmp_path, ".txt", ["skip"]) == ["sub/c.txt"]
    assert list_files(tmp_path, (".txt", ".md"), ["skip"]) == ["a.md", "sub/c.txt"]


def test_what_cannot_be_listed_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="must exist.*no_such_folder"):
        list_files(tmp_path / "no_such_folder", ".txt")
    with pytest.raises(FileNotFoundError, match="must hold .txt or .md files"):
        list_files(tmp_path, (".txt", ".md"))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(NotADirectoryError, match="must be a folder, not a file"):
        list_files(tmp_path / "a.txt", ".txt")
