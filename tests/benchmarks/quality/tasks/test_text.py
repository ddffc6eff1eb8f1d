import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks import text


def test_windows_are_of_the_files_of_their_split(books):
    task = text.Text(32, str(books))
    for held_out, split in ((False, "train"), (True, "validation")):
        files = sorted((books / split).glob("*.txt"))
        whole = b"".join(file.read_bytes() + b"\0" for file in files)
        tokens, targets, _ = task.sample(np.random.default_rng(0), 16, held_out)
        for row, target in zip(tokens, targets):
            window = bytes(row.tolist()) + bytes([int(target[-1])])
            assert window in whole
            assert bytes(target.tolist()) == window[1:]


def last_match(sequence, place):
    """The distance from `place` to the last occurrence of its byte and the four before it."""
    match = sequence[place - 4 : place + 1]
    return next(
        (back for back in range(1, place - 3) if sequence[place - back - 4 :][:5] == match), None
    )


def test_groups_say_where_five_bytes_last_stood():
    rng = np.random.default_rng(0)
    rows = rng.integers(2, size=[3, 101])
    found = text.Text(100).groups(rows[:, :-1], rows[:, 1:], window=20)
    for row, groups in zip(rows.tolist(), found):
        for place in range(1, 101):
            back = last_match(row, place) if place >= 4 else None
            expected = "new" if back is None else "near" if back <= 20 else "far"
            assert text.Text.group_names[groups[place - 1]] == expected
    assert set(found.ravel().tolist()) == {0, 1, 2}


def test_a_folder_without_a_split_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1.txt").write_text("once")
    with pytest.raises(ValueError, match="--directory must hold texts for validation. Received"):
        text.Text(8, str(tmp_path)).sample(np.random.default_rng(0), 1, True)
