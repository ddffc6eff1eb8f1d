import pytest

from rt_keras.benchmarks.quality import report

SETTINGS = {"task": "recall", "length": 128, "steps": 20, "batch": 32, "layers": 2, "width": 128}
SETTINGS |= {"keys": 8, "clusters": 8, "learning_rate": 2e-3, "directory": None}
SETTINGS |= {"positions": "relative"}
SETTINGS |= {"test_lengths": [256, 4096]}
SCORES = {"recall": "accuracy", "text": "loss"}


def figure(kind, seed, ends, task="recall", groups=None):
    return {
        "settings": {**SETTINGS, "task": task, "kind": kind, "seed": seed},
        "machine": "a machine in words",
        "weights": 12345,
        "keys_seen": 8.25,
        "steps": [10, 20],
        "loss": ends,
        "accuracy": ends,
        "groups": groups or {},
        "at_lengths": [{"accuracy": end, "loss": end} for end in (ends[-1] / 2, ends[-1] / 4)],
        "cluster_use": {
            "routing_0_fullest": [0.9, 0.5],
            "routing_1_fullest": [0.9, 0.25],
            "routing_0_empty": [0, 0],
            "routing_0_entropy": [0.5, 0.75],
        }
        if "nearest" in kind
        else {},
        "seconds": 0.1 + 0.1 * seed,
        "peak_bytes": 10**9,
    }


FIGURES = [
    figure("local", 0, [0.1, 0.2]),
    figure("oracle", 0, [0.95, 1.0]),
    figure("local_and_nearest", 0, [0.5, 0.7]),
    figure("local_and_nearest", 1, [0.5, 0.5]),
]


def rows(text):
    return {line.split("  ")[0]: line.split() for line in text.splitlines()}


def test_a_row_has_the_means_and_the_spread_over_seeds():
    text = report.report(FIGURES, SCORES)
    assert text.splitlines()[0] == "a machine in words"
    assert "recall, accuracy on held-out sequences: 128 tokens, 20 steps of 32" in text
    assert "seeds 0, 1" in text
    # The name has three words. The accuracies are 0.7 and 0.5, the times 100 and 200 ms.
    found = rows(text)["local and nearest"][3:]
    assert found[:6] == ["0.600", "0.141", "50%", "0.300", "0.150", "-"]
    assert found[6:] == ["8.2", "12,345", "150", "1,000", "0.50", "0.75"]
    assert rows(text)["local"][1:4] == ["0.200", "-", "0%"]
    assert rows(text)["local"][-2:] == ["-", "-"]


def test_the_first_step_with_the_accuracy_is_shown():
    assert rows(report.report(FIGURES, SCORES))["oracle"][6] == "10"
    assert report.steps_to(FIGURES[2], 0.7) == 20
    assert report.steps_to(FIGURES[2], 0.9) is None


@pytest.mark.parametrize("missing", ["local", "oracle"])
def test_without_local_or_oracle_no_gap_is_closed(missing):
    means = {"local": 0.5, "oracle": 1.0, "full": 0.75}
    del means[missing]
    assert set(report.gaps_closed(means).values()) == {None}


def test_a_lower_loss_closes_the_gap_too():
    means = {"local": 2.0, "oracle": 1.0, "full": 1.25}
    assert report.gaps_closed(means)["full"] == 0.75


def test_there_is_no_gap_between_equals():
    assert set(report.gaps_closed({"local": 1.0, "oracle": 1.0}).values()) == {None}


def test_every_task_has_a_table_and_groups_have_columns():
    groups = {"near": {"share": 0.6, "loss": 1.125}, "far": {"share": 0.4, "loss": None}}
    text = report.report([*FIGURES, figure("full", 0, [2.0, 1.5], "text", groups)], SCORES)
    assert "text, loss on held-out sequences" in text
    line = rows(text)["full"]
    assert line[:6] == ["full", "1.500", "-", "-", "1.125", "-"]


@pytest.mark.parametrize("name, start", [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_learning_curves_are_drawn(tmp_path, name, start):
    both = [*FIGURES, figure("full", 0, [2.0, 1.5], "text")]
    report.draw(both, SCORES, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_drawing_names_kinds_tasks_and_scores(tmp_path):
    report.draw([*FIGURES, figure("full", 0, [2.0, 1.5], "text")], SCORES, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in ("local and nearest", "recall, accuracy on held-out", "steps", "loss"):
        assert f"<!-- {words}" in text
