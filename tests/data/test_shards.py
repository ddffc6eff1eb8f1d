import json
import os

import pytest

from rt_keras.data import shards

ITEMS = [bytes([65 + number]) * (1 + number % 4) for number in range(12)]


def save(path, items):
    path.write_bytes(b"".join(items))


def write(folder, items=ITEMS, limit=6, **contents):
    contents = {"unit": "letters", **contents}
    shards.write(folder, contents, lambda n: iter(items[n:]), save, ".txt", limit)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.fixture
def packed(tmp_path):
    write(tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize("stop", [0, 1, 5, 11])
def test_an_interruption_loses_one_shard_at_most(packed, tmp_path, stop):
    def items(first):
        for number in range(first, len(ITEMS)):
            if number == stop:
                raise KeyboardInterrupt
            yield ITEMS[number]

    folder = tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt):
        shards.write(folder, {"unit": "letters"}, items, save, ".txt", 6)
    if (folder / "manifest.json").exists():
        with pytest.raises(ValueError, match="interrupted is incomplete; pack the same letters"):
            shards.read_finished(folder, "letters")
    read = []

    def rest(first):
        read.append(first)
        return iter(ITEMS[first:])

    shards.write(folder, {"unit": "letters"}, rest, save, ".txt", 6)
    assert files_of(folder) == files_of(packed)
    assert read == [{0: 0, 1: 0, 5: 3, 11: 11}[stop]]


def test_a_failed_write_and_no_items_leave_no_file(tmp_path):
    def fail(path, items):
        path.write_bytes(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        shards.write(tmp_path / "x", {"unit": "letters"}, lambda n: iter(ITEMS), fail, ".txt", 6)
    with pytest.raises(ValueError, match="letters must not be empty"):
        write(tmp_path / "empty", [])
    assert not files_of(tmp_path / "x") and not files_of(tmp_path / "empty")


@pytest.mark.parametrize(
    "damage, problem",
    [
        (os.unlink, "00001.txt is missing"),
        (lambda path: os.truncate(path, 3), "00001.txt is damaged: it has 3 bytes, not 7"),
    ],
)
def test_a_lost_file_is_named_and_packed_again(packed, damage, problem):
    before = files_of(packed)
    damage(packed / "00001.txt")
    with pytest.raises((ValueError, FileNotFoundError), match=f"{problem}; pack the same letters"):
        shards.read_finished(packed, "letters")
    with pytest.warns(UserWarning, match=f"{problem}; packing it again$"):
        write(packed)
    assert files_of(packed) == before


def test_without_its_manifest_all_is_packed_again(packed):
    before = files_of(packed)
    (packed / "manifest.json").unlink()
    (packed / "00002.txt").unlink()
    write(packed)
    assert files_of(packed) == before


def test_a_file_is_not_replaced_by_another(packed):
    (packed / "00001.txt").unlink()
    for others in ([item.lower() for item in ITEMS], ITEMS[:4], []):
        with pytest.raises(ValueError, match="00001.txt cannot be packed again: .* has changed"):
            write(packed, others)
        assert not (packed / "00001.txt").exists()


def test_changed_bytes_are_found_by_their_sums(packed):
    shards.check_packed(packed)
    path = packed / "00002.txt"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    shards.read_finished(packed, "letters")
    with pytest.raises(ValueError, match="00002.txt is damaged: its bytes have changed; delete it"):
        shards.check_packed(packed)


def test_a_manifest_that_was_changed_is_named(packed):
    path = packed / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["length"] = 99
    path.write_text(json.dumps(manifest))
    for use in (write, lambda folder: shards.read_finished(folder, "letters")):
        with pytest.raises(ValueError, match="manifest.json is damaged: its content has changed"):
            use(packed)
    path.write_text("[")
    with pytest.raises(ValueError, match="manifest.json is damaged: it is not JSON"):
        write(packed)


def test_other_contents_are_refused(packed, tmp_path):
    with pytest.raises(ValueError, match="whose identity is None, not 'others'; pack into another"):
        write(packed, identity="others")
    with pytest.raises(ValueError, match="must hold packed digits; it holds packed letters"):
        shards.read_finished(packed, "digits")
    with pytest.raises(FileNotFoundError, match="holds no packed data: it has no manifest.json"):
        shards.read_finished(tmp_path / "nowhere", "letters")


def test_the_second_of_two_packers_waits_and_reads_nothing(packed, tmp_path, monkeypatch):
    folder, lock = tmp_path / "two", shards.files.locked

    def locked_by_the_first(folder, wait):
        assert wait
        monkeypatch.setattr(shards.files, "locked", lock)
        write(folder)
        return lock(folder, wait)

    monkeypatch.setattr(shards.files, "locked", locked_by_the_first)
    shards.write(folder, {"unit": "letters"}, None, save, ".txt", 6)
    assert files_of(folder) == files_of(packed)
