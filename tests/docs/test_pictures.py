"""Tests of the README's picture, and of those that show routing step by step."""

import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@pytest.fixture
def script(monkeypatch):
    """Imports a script; scripts can import their neighbors."""
    monkeypatch.syspath_prepend(PICTURES)
    return importlib.import_module


def queries_see_the_last_members_of_their_cluster(attention, clusters, script):
    for query, seen in enumerate(attention):
        members = np.flatnonzero(clusters[: query + 1] == clusters[query])
        np.testing.assert_array_equal(np.flatnonzero(seen), members[-script.WINDOW :])
    assert len(set(clusters)) == script.CLUSTERS


def test_maps_are_those_of_the_equations(script):
    routing_picture = script("routing_picture")
    maps, clusters = routing_picture.attention_maps()
    full, local, routing = maps.values()
    i, j = np.indices(full.shape)
    np.testing.assert_array_equal(full, j <= i)
    blocks = i // routing_picture.WINDOW - j // routing_picture.WINDOW
    np.testing.assert_array_equal(local, (j <= i) & (blocks <= 1))
    queries_see_the_last_members_of_their_cluster(routing, clusters, routing_picture)


def test_the_readmes_picture_is_written(script, tmp_path):
    script("routing_picture").draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_steps_are_on_a_circle_and_centroids_move_to_their_members(script):
    routing_steps = script("routing_steps")
    found = routing_steps.example()
    queries_see_the_last_members_of_their_cluster(found.seen, found.clusters, routing_steps)
    np.testing.assert_allclose(np.linalg.norm(found.points, axis=-1), np.sqrt(3), rtol=1e-5)
    np.testing.assert_array_equal((found.points @ found.centroids.T).argmax(-1), found.clusters)
    for cluster, (before, after) in enumerate(zip(found.centroids, found.moved)):
        mean = found.points[found.clusters == cluster].mean(0)
        assert after @ mean > before @ mean


@pytest.mark.slow
def test_pictures_of_steps_are_the_same_whenever_they_are_drawn(script, tmp_path):
    routing_steps = script("routing_steps")
    first, second = (routing_steps.draw(tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [f"{name}.svg" for name in routing_steps.PICTURES]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("name", ["routing_picture", "routing_steps"])
def test_usage_is_said_without_an_argument(name, script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    with pytest.raises(SystemExit, match="usage"):
        runpy.run_path(PICTURES / f"{name}.py", run_name="__main__")
