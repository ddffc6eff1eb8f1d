import pytest

from rt_keras.drawing import check_plot, drawing


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


def test_paths_that_cannot_be_drawn_to_are_refused():
    check_plot("--plot", None)
    with pytest.raises(
        ValueError, match="--plot must end in .png or .svg or .pdf. Received: a.gif"
    ):
        check_plot("--plot", "a.gif")
    with pytest.raises(ValueError, match="--plot must be a file that can be written"):
        check_plot("--plot", f"{__file__}/a.svg")
