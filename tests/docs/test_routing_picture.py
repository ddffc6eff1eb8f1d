"""Tests of the README's picture."""

import numpy as np
import pytest


@pytest.fixture
def routing_picture(picture_script):
    return picture_script("routing_picture")


def test_maps_are_those_of_the_equations(routing_picture):
    maps, clusters = routing_picture.attention_maps()
    full, local, routing = maps.values()
    i, j = np.indices(full.shape)
    np.testing.assert_array_equal(full, j <= i)
    blocks = i // routing_picture.WINDOW - j // routing_picture.WINDOW
    np.testing.assert_array_equal(local, (j <= i) & (blocks <= 1))
    for query, seen in enumerate(routing):
        members = np.flatnonzero(clusters[: query + 1] == clusters[query])
        np.testing.assert_array_equal(np.flatnonzero(seen), members[-routing_picture.WINDOW :])
    assert len(set(clusters)) == routing_picture.CLUSTERS


def test_picture_is_written(routing_picture, tmp_path):
    path = tmp_path / "picture.png"
    routing_picture.draw(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_usage_is_said_without_a_file(run_without_arguments):
    with pytest.raises(SystemExit, match="usage"):
        run_without_arguments("routing_picture")
