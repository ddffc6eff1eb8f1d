import argparse
import json
import re

import pytest

from rt_keras.benchmarks import plot


def figures(lengths):
    return [
        {
            "kind": kind,
            "package": "rt_keras" if kind == "full" else "torch",
            "direction": direction,
            "length": length,
            "seconds": 1e-6 * length**power,
            "peak_bytes": 1000 * length,
        }
        for length in lengths
        for direction in plot.DIRECTIONS
        for kind, power in (("full", 2.0), ("nearest_shared", 1.5))
    ]


def result(lengths):
    settings = {"heads": 8, "depth": 64, "window": "sqrt"}
    found = {"benchmark": "attention", "machine": "a machine in words", "settings": settings}
    return {**found, "figures": figures(lengths)}


def test_slopes_are_the_powers_of_the_length():
    found = {
        (curve["quantity"], curve["direction"], curve["kind"]): curve["slope"]
        for curve in plot.curves(figures([1024, 2048, 8192]))
    }
    assert len(found) == 8
    for direction in plot.DIRECTIONS:
        assert found["seconds", direction, "full"] == pytest.approx(2.0)
        assert found["seconds", direction, "nearest_shared"] == pytest.approx(1.5)
        assert found["peak_bytes", direction, "full"] == pytest.approx(1.0)


def test_curves_run_from_short_to_long_in_whatever_order_they_were_measured():
    curve = plot.curves(figures([4096, 1024]))[0]
    assert curve["lengths"] == (1024, 4096)
    assert curve["values"] == pytest.approx((1e-6 * 1024**2, 1e-6 * 4096**2))


def test_one_length_has_no_slope():
    assert {curve["slope"] for curve in plot.curves(figures([1024]))} == {None}


@pytest.mark.parametrize(
    "name, start", [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")]
)
def test_the_ending_says_the_format(tmp_path, name, start):
    plot.draw(result([1024]), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_drawing_names_kinds_slopes_and_units(tmp_path):
    path = tmp_path / "a.svg"
    plot.draw(result([1024, 2048]), path)
    text = path.read_text()
    for words in ("a machine in words", "nearest shared", "MB", "seconds", "positions n"):
        assert f"<!-- {words}" in text or words in text


def test_lines_of_other_packages_are_dashed(tmp_path):
    path = tmp_path / "a.svg"
    plot.draw(result([1024, 2048]), path)
    dashed = re.findall(r"stroke-dasharray: 5.55", path.read_text())
    # One of the two kinds in each of four plots, and in their legends.
    assert len(dashed) == 8


def draw_file(path, output):
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    plot.main(parser.parse_args([str(path), "--output", str(output)]))


def test_a_file_of_figures_can_be_drawn_later(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result([1024, 2048])))
    draw_file(path, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "a machine in words" in text and "window sqrt(n)" in text


def test_files_that_cannot_be_drawn_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"benchmark": "quality"}')
    with pytest.raises(ValueError, match="a.json is not from rt-keras benchmark attention"):
        draw_file(tmp_path / "a.json", tmp_path / "a.svg")
    with pytest.raises(ValueError, match="--output must end in .png or .svg or .pdf. Received"):
        draw_file(tmp_path / "a.json", tmp_path / "a.txt")
