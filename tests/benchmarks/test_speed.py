import functools

import numpy as np
import pytest

from rt_keras.benchmarks import models, rivals, speed
from tests.benchmarks import checks

parse = functools.partial(checks.parse, speed)
SECONDS = {"full": 8.0, "local": 2.0, "balanced_shared": 4.0, "kmeans_attention": 4.0}
SMALL = ["--depth", 4, "--window", 4, "--repeats", 1, "--threads", 2]


@pytest.fixture
def contests(monkeypatch):
    """The contenders of each contest, which take the seconds above, if any."""
    held = []

    def contest(contenders, repeats, threads, where):
        held.append(contenders)
        return {
            name: {"seconds": SECONDS[name], "runs": [SECONDS[name]], "peak_bytes": 5 * 10**6}
            for name in contenders
            if name in SECONDS
        }

    monkeypatch.setattr(speed.workers, "contest", contest)
    monkeypatch.setattr(rivals, "versions", lambda chosen: {})
    return held


def measure(*options, chosen=()):
    args = parse(*options, *SMALL)
    speed.check(args)
    return speed.measure(args, dict(chosen))


def test_times_are_compared_with_full_attention_and_rivals_at_the_same_length(contests):
    chosen = {"kmeans_attention": ("json", "torch")}
    result = measure("--lengths", 8, 4, "--kinds", "local", "full", "lsh", chosen=chosen)
    # What fails, here lsh, is left out.
    assert len(result["figures"]) == 2 * 2 * 3
    for contest in contests:
        rival = contest["kmeans_attention"]
        assert rival.imports == ("json", "torch") and rival.target.endswith("rivals:prepare")
        assert contest["local"].arguments["window"] == 4
    for figure in result["figures"]:
        ratios = {x: SECONDS[x] / SECONDS[figure["kind"]] for x in SECONDS if x[0] != "b"}
        assert figure["times_as_fast_as"] == ratios
        assert (figure["package"] == "rt_keras") == (figure["kind"] != "kmeans_attention")
    assert len(result["slopes"]) == 6 and result["slopes"][0]["peak_bytes"] == 0.0
    row = speed.report(result).splitlines()[-1].split()
    assert row[0] == "4" and row[-5:] == ["4,000.000", "5", "2.00", "0.50", "1.00"]
    with pytest.raises(RuntimeError, match="every contender failed"):
        measure("--kinds", "lsh", "--lengths", 8)


def test_seconds_of_generation_are_those_of_one_token(contests):
    kinds = ["--kinds", "full", "balanced_shared"]
    result = measure("generation", *kinds, "--lengths", 64, "--tokens", 16)
    full, balanced = result["figures"]
    assert (full["seconds"], balanced["seconds"]) == (8.0 / 16, 4.0 / 4)
    assert full["runs"] == [0.5] and contests[0]["full"].arguments["heads"] == 4


def test_heads_of_models_have_the_window_and_clusters_fill_the_sequence():
    for kind in speed.KINDS["step"]:
        assert sum(group.num_heads for group in models.head_groups(kind, 4, 32, 8)) == 4
    for kind in models.ROUTING:
        local, routing = models.head_groups(kind, 4, 32, 8)
        (cluster,) = routing.key_sets
        assert (local.num_heads, local.key_sets[0].block_size) == (2, 8)
        assert (routing.num_heads, cluster.num_clusters, cluster.window_size) == (2, 4, 8)
        assert kind == f"{cluster.assignment}_{'shared' if routing.share_qk else 'separate'}"


def test_rivals_that_are_not_installed_are_left_out_with_a_line_that_helps(monkeypatch, capsys):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    assert rivals.choose([]) == {} and capsys.readouterr().err == ""
    assert rivals.choose(None) == {}
    assert capsys.readouterr().err.splitlines()[1] == (
        "not installed: kmeans_attention needs torch and routing-transformer: "
        "pip install torch routing-transformer"
    )
    # Those that are requested must be installed.
    with pytest.raises(ValueError, match="--rivals: torch_full needs torch: pip install torch"):
        rivals.choose(["torch_full"])


@pytest.mark.weekly
def test_steps_move_centroids_and_generation_writes_the_last_tokens():
    sizes = {"length": 32, "heads": 4, "depth": 4, "window": 8, "layers": 1}
    step = models.prepare_step("nearest_shared", batch=2, **sizes)
    cells = [cell.cell_contents for cell in step.__closure__]
    (trained,) = [x for x in cells if hasattr(x, "trainable_weights")]
    heads = trained.backbone.transformer_blocks[0].attention.head_groups[1]
    centroids = heads.centroids.centroids.numpy()
    step()
    assert np.abs(heads.centroids.centroids.numpy() - centroids).max() > 0
    tokens = models.prepare_generation("nearest_separate", tokens=3, **sizes)()
    assert tokens.shape == (1, 32) and not tokens[0, :29].any()
