import json
import re

import pytest

from rt_keras.benchmarks import plot
from tests.benchmarks.checks import parse


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
    # From short to long in whatever order they were measured; one length has no slope.
    assert plot.curves(figures([4096, 1024]))[0]["lengths"] == (1024, 4096)
    assert {curve["slope"] for curve in plot.curves(figures([1024]))} == {None}


def test_a_file_of_figures_is_drawn_with_dashed_lines_of_other_packages(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result([1024, 2048])))
    plot.main(parse(plot, path, output=tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    assert all(x in text for x in ("a machine", "nearest shared", "positions n", "window sqrt(n)"))
    # One of the two kinds in each of four plots, and in their legends.
    assert len(re.findall(r"stroke-dasharray: 5.55", text)) == 8
    path.write_text('{"benchmark": "quality"}')
    with pytest.raises(ValueError, match="a.json is not from rt-keras benchmark attention"):
        plot.main(parse(plot, path, output=tmp_path / "a.svg"))
