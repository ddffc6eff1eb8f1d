"""Tests of the pictures that show routing step by step."""

import numpy as np
import pytest


@pytest.fixture
def routing_steps(picture_script):
    return picture_script("routing_steps")


def test_queries_see_the_last_members_of_their_cluster(routing_steps):
    found = routing_steps.example()
    assert set(found.clusters) == set(range(routing_steps.CLUSTERS))
    for query, seen in enumerate(found.seen):
        members = np.flatnonzero(found.clusters[: query + 1] == found.clusters[query])
        np.testing.assert_array_equal(np.flatnonzero(seen), members[-routing_steps.WINDOW :])


def test_vectors_are_on_a_circle_and_centroids_move_to_their_members(routing_steps):
    found = routing_steps.example()
    np.testing.assert_allclose(np.linalg.norm(found.points, axis=-1), np.sqrt(3), rtol=1e-5)
    np.testing.assert_array_equal((found.points @ found.centroids.T).argmax(-1), found.clusters)
    for cluster, (before, after) in enumerate(zip(found.centroids, found.moved)):
        mean = found.points[found.clusters == cluster].mean(0)
        assert after @ mean > before @ mean


@pytest.mark.slow
def test_pictures_are_the_same_whenever_they_are_drawn(routing_steps, tmp_path):
    first, second = (routing_steps.draw(tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [f"{name}.svg" for name in routing_steps.PICTURES]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_usage_is_said_without_a_folder(run_without_arguments):
    with pytest.raises(SystemExit, match="usage"):
        run_without_arguments("routing_steps")
