import pytest

from rt_keras.analysis.drawing import drawing


def test_the_same_drawing_is_the_same_file(tmp_path):
    for folder in ("a", "b"):
        with drawing(tmp_path / folder / "line.svg", figsize=(2, 1)) as figure:
            figure.subplots().plot([1, 2])
    first, second = (tmp_path / folder / "line.svg" for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_drawing_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), drawing(tmp_path / "line.svg") as figure:
        figure.subplots().plot([1 / 0])
    assert not list(tmp_path.iterdir())
