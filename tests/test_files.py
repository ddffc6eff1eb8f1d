import contextlib
import errno
import io
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rt_keras import files


def write_file(path):
    files.write_json(path, {})


def write_folder(path):
    with files.whole_folder(path) as part:
        (part / "weights").write_text("whole")


def test_an_interrupted_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "figures.json"
    files.write_json(path, {"steps": 1})
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(error)), files.whole_file(path) as part:
            part.write_text("{half of")
            raise error
        with pytest.raises(type(error)), files.whole_folder(tmp_path / "model") as part:
            (part / "weights").write_text("half")
            raise error
        assert path.read_text() == '{\n  "steps": 1\n}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["figures.json"]


def test_a_whole_file_is_in_new_folders_with_the_rights_of_an_ordinary_one(tmp_path):
    (tmp_path / "ordinary").write_text("")
    path = tmp_path / "new" / "figures.json"
    files.check_writable("--json", path)
    files.write_json(path, {})
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    write_folder(tmp_path / "model")
    assert (tmp_path / "model" / "weights").read_text() == "whole"
    with pytest.raises(FileExistsError, match="already exists; name a new"):
        write_folder(tmp_path / "model")


@pytest.mark.parametrize("write", [write_file, write_folder, files.check_new_folder])
@pytest.mark.parametrize("below", ["", "config.yaml"])
def test_a_dangling_link_is_named_with_its_target(tmp_path, write, below):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="link is a link to .*gone, which does not exist"):
        write(tmp_path / "link" / below)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    with pytest.raises(ValueError, match="--json must be a file .*gone, which does not exist"):
        files.check_writable("--json", tmp_path / "link" / below)


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_path_below_a_file_is_refused(tmp_path, write):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is not a folder"):
        write(tmp_path / "file" / "figures.json")
    for path in (tmp_path / "file" / "figures.json", tmp_path):
        with pytest.raises(ValueError, match=f"--json must be a file that .* {tmp_path}"):
            files.check_writable("--json", path)


@pytest.mark.parametrize("content", [b'{"a": ', b"\xff\xfe", b"[1]"])
def test_a_damaged_json_file_is_named(content, tmp_path):
    (tmp_path / "figures.json").write_bytes(content)
    with pytest.raises(ValueError, match="figures.json is damaged: it "):
        files.read_json(tmp_path / "figures.json")


def test_files_that_have_changed_since_their_sums_were_written_are_named(tmp_path):
    files.check_sums(tmp_path)
    (tmp_path / "assets").mkdir()
    for name in ("model.weights.h5", "assets/words.txt"):
        (tmp_path / name).write_bytes(b"whole")
        files.write_sums(tmp_path)
        files.check_sums(tmp_path)
        (tmp_path / name).write_bytes(b"whale")
        with pytest.raises(ValueError, match=f"{tmp_path}/{name} is damaged: its bytes are not"):
            files.check_sums(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            files.check_sums(tmp_path)


def test_new_files_replace_those_of_a_folder_only_once_all_are_written(tmp_path):
    folder = tmp_path / "model"
    for content in ("first", "second"):
        with files.new_files(folder) as part:
            (part / "assets").mkdir()
            (part / "assets" / "words.txt").write_text(content)
        assert (folder / "assets" / "words.txt").read_text() == content
        files.check_sums(folder)
    before = folder.stat().st_mode
    with pytest.raises(OSError), files.new_files(folder) as part:
        (part / "assets.txt").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    files.check_sums(folder)
    assert folder.stat().st_mode == before != part.parent.parent.stat().st_mode
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "assets"]


def test_a_disk_without_room_is_refused(tmp_path):
    files.check_space(tmp_path, 10)
    with pytest.raises(OSError, match="no space left: 1.* bytes are needed, .* free") as error:
        files.check_space(tmp_path, 10**18)
    assert error.value.errno == errno.ENOSPC


def test_a_folder_has_one_owner_at_a_time(tmp_path):
    folder = tmp_path / "run"
    with files.locked(folder):
        message = "run is in use by another process$"
        with pytest.raises(BlockingIOError, match=message), files.locked(folder):
            pass
    # Nothing was written to it.
    assert not folder.exists()
    with files.locked(folder):
        (folder / "figures.json").write_text("{}")
    with files.locked(folder):
        pass
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "figures.json"]


def test_who_waits_gets_the_folder_once_it_is_free(tmp_path):
    folder, order = tmp_path / "run", []

    def wait():
        with files.locked(folder, wait=True):
            order.append("second")

    # Output that pytest captures would be lost if it were read during a write.
    with contextlib.redirect_stderr(io.StringIO()) as shown, ThreadPoolExecutor() as threads:
        with files.locked(folder):
            second = threads.submit(wait)
            while not shown.getvalue().endswith("\n"):
                time.sleep(0.01)
            order.append("first")
        second.result(60)
    assert shown.getvalue() == f"waiting for another process, which is using {folder}\n"
    assert order == ["first", "second"]


def test_deleting_a_link_keeps_what_it_leads_to(tmp_path):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").write_text("")
    for name in ("folder", "link", "file", "nothing"):
        files.delete(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
