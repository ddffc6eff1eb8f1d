import errno
import json

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks.checkpoints import Checkpoints

ARRAYS = {
    "0_kernel": np.float32([[1.5, -2.0]]),
    "1_seed": np.uint32([7, 9]),
    "2_iterations": np.int64(3),
    "3_a.b/c": np.array([True, False]),
}


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", max_to_keep=2)
    for step in (5, 10):
        checkpoints.write(step, ARRAYS, {"best": step})
    return checkpoints


def names(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_arrays_and_values_come_back(checkpoints, tmp_path):
    assert Checkpoints(tmp_path / "none").newest() == (None, [])
    assert Checkpoints(checkpoints.folder).newest() == (10, [])
    found, values = checkpoints.read(5)
    assert values == checkpoints.values(5) == {"best": 5} and set(found) == set(ARRAYS)
    for name, expected in ARRAYS.items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


def test_the_last_ones_are_kept_and_what_is_unfinished_is_deleted(checkpoints):
    (checkpoints.folder / "15.data-00000-of-00001.tempstate1").write_bytes(b"half")
    (checkpoints.folder / "15_temp").mkdir()
    assert checkpoints.newest()[0] == 10
    checkpoints.write(20, ARRAYS, {})
    of_one = [".data-00000-of-00001", ".index", ".json"]
    assert names(checkpoints) == [f"{step}{end}" for step in (10, 20) for end in of_one]


def changes(data):
    """The bytes of a file with one byte flipped, and truncated."""
    for place in sorted({*range(0, len(data), max(1, len(data) // 60)), len(data) - 1}):
        yield data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]
        yield data[:place]


@pytest.mark.parametrize("end", [".data-00000-of-00001", ".index", ".json"])
def test_a_changed_byte_or_a_short_file_is_refused_and_the_one_before_is_taken(checkpoints, end):
    path = checkpoints.folder / f"10{end}"
    whole = path.read_bytes()
    for changed in changes(whole):
        path.write_bytes(changed)
        step, messages = checkpoints.newest()
        if end == ".json" and changed.rstrip() == whole.rstrip():
            assert step == 10
            continue
        assert step == 5
        assert str(path) in messages[0] and "is damaged" in messages[0]
        with pytest.raises(ValueError, match="is damaged"):
            checkpoints.read(10)
    path.write_bytes(whole)
    assert checkpoints.newest()[0] == 10


def test_what_lacks_a_file_or_is_no_checkpoint_does_not_count(checkpoints):
    for content in ("[]", "{}", json.dumps({"step": 30, "files": {}, "sha256": "0"})):
        (checkpoints.folder / "30.json").write_text(content)
        assert checkpoints.newest()[0] == 10
    (checkpoints.folder / "30.json").unlink()
    (checkpoints.folder / "10.index").unlink()
    step, (message,) = checkpoints.newest()
    assert step == 5 and message.endswith("10.index is missing")
    (checkpoints.folder / "10.json").unlink()
    assert checkpoints.newest() == (5, [])


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), tf.errors.ResourceExhaustedError(*[None] * 3)]
)
def test_a_full_disk_leaves_the_others_and_nothing_else(checkpoints, monkeypatch, error):
    before = names(checkpoints)

    def write_half(self, prefix):
        with open(f"{prefix}.data-00000-of-00001", "wb") as file:
            file.write(b"half")
        raise error

    monkeypatch.setattr(tf.train.Checkpoint, "write", write_half)
    with pytest.raises(OSError, match="the checkpoint of step 20 was not written to .*checkpoints"):
        checkpoints.write(20, ARRAYS, {})
    assert names(checkpoints) == before and checkpoints.newest()[0] == 10
