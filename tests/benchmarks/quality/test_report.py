from rt_keras.benchmarks.quality import report

SETTINGS = {"task": "recall", "length": 128, "steps": 20, "batch": 32, "layers": 2, "width": 128}
SETTINGS |= {"keys": 8, "clusters": 8, "learning_rate": 2e-3, "directory": None}
SETTINGS |= {"positions": "relative", "test_lengths": [256, 4096]}
SCORES = {"recall": "accuracy", "text": "loss"}
USE = {
    "routing_0_fullest": [0.9, 0.5],
    "routing_1_fullest": [0.9, 0.25],
    "routing_0_empty": [0, 0],
    "routing_0_entropy": [0.5, 0.75],
}


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
        "cluster_use": USE if "nearest" in kind else {},
        "seconds": 0.1 + 0.1 * seed,
        "peak_bytes": 10**9,
    }


GROUPS = {"near": {"share": 0.6, "loss": 1.125}, "far": {"share": 0.4, "loss": None}}
FIGURES = [
    figure("local", 0, [0.1, 0.2]),
    figure("oracle", 0, [0.95, 1.0]),
    figure("local_and_nearest", 0, [0.5, 0.7]),
    figure("local_and_nearest", 1, [0.5, 0.5]),
    figure("full", 0, [2.0, 1.5], "text", GROUPS),
]


def test_a_row_has_the_means_and_the_spread_over_seeds():
    text = report.report(FIGURES, SCORES)
    assert text.splitlines()[0] == "a machine in words"
    assert "recall, accuracy on held-out sequences: 128 tokens, 20 steps of 32" in text
    assert "seeds 0, 1" in text and "text, loss on held-out sequences" in text
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    # The name has three words. The accuracies are 0.7 and 0.5, the times 100 and 200 ms.
    found = rows["local and nearest"][3:]
    assert found[:6] == ["0.600", "0.141", "50%", "0.300", "0.150", "-"]
    assert found[6:] == ["8.2", "12,345", "150", "1,000", "0.50", "0.75"]
    assert rows["local"][1:4] == ["0.200", "-", "0%"] and rows["local"][-2:] == ["-", "-"]
    # The first step with the accuracy.
    assert rows["oracle"][6] == "10"
    assert rows["full"][:6] == ["full", "1.500", "-", "-", "1.125", "-"]


def test_the_share_of_the_gap_between_local_and_oracle_that_is_closed():
    # A lower loss closes it too.
    assert report.gaps_closed({"local": 2.0, "oracle": 1.0, "full": 1.25})["full"] == 0.75
    for means in ({"local": 0.5, "full": 0.7}, {"oracle": 1.0}, {"local": 1.0, "oracle": 1.0}):
        assert set(report.gaps_closed(means).values()) == {None}


def test_the_drawing_names_kinds_tasks_and_scores(tmp_path):
    report.draw(FIGURES, SCORES, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in ("local and nearest", "recall, accuracy on held-out", "steps", "loss"):
        assert f"<!-- {words}" in text
