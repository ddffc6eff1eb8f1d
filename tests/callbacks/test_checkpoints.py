import resource

import numpy as np
import pytest

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
    for step in (900, 1000):
        checkpoints.write(step, ARRAYS, {"best": step})
    return checkpoints


def names(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_the_newest_of_none_and_of_two(checkpoints, tmp_path):
    assert Checkpoints(tmp_path / "none").newest() == (None, None, [])
    assert Checkpoints(checkpoints.folder).newest() == (1000, {"best": 1000}, [])
    assert is_intact(checkpoints, 900)


def test_the_last_ones_are_kept_and_what_is_unfinished_or_later_is_deleted(checkpoints):
    (checkpoints.folder / "1500.data-00000-of-00001.tempstate1").write_bytes(b"half")
    (checkpoints.folder / "1500.data-00000-of-00001").write_bytes(b"without an index")
    (checkpoints.folder / "3000.index").write_bytes(b"damaged")
    assert checkpoints.newest()[0] == 1000
    checkpoints.write(2000, ARRAYS, {})
    ends = (".data-00000-of-00001", ".index")
    assert names(checkpoints) == [f"{step}{end}" for step in (1000, 2000) for end in ends]


def is_intact(checkpoints, step):
    """Whether a checkpoint is read; what it then holds is what was written."""
    try:
        found, values = checkpoints.read(step)
    except ValueError as error:
        assert f"the checkpoint {checkpoints.folder}/{step} is damaged: " in str(error)
        return False
    assert values == {"best": step} and set(found) == set(ARRAYS)
    for name, expected in ARRAYS.items():
        np.testing.assert_array_equal(found[name], expected, strict=True)
    return True


@pytest.mark.parametrize("end", [".data-00000-of-00001", ".index"])
def test_a_changed_byte_or_a_short_file_is_refused_and_the_one_before_is_taken(checkpoints, end):
    path = checkpoints.folder / f"1000{end}"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert not is_intact(checkpoints, 1000)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        # The index has bytes that are never read.
        assert not is_intact(checkpoints, 1000) or end == ".index"
    path.write_bytes(whole[:-1])
    step, _, (message,) = checkpoints.newest()
    assert step == 900 and "1000 is damaged" in message
    path.unlink()
    assert checkpoints.newest()[0] == 900


def test_a_full_disk_leaves_what_was_there(checkpoints):
    before, (_, hard) = names(checkpoints), resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file that grows beyond this is an error, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, hard))
    try:
        for step in (1000, 2000):
            with pytest.raises(OSError, match=f"step {step:,} was not written to .*: .*too large"):
                checkpoints.write(step, {**ARRAYS, "large": np.zeros(2**14)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert names(checkpoints) == before and is_intact(checkpoints, 1000)
