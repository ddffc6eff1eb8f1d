import argparse

import pytest

from rt_keras.benchmarks import attention, kinds, operations, rivals


def parse(*options):
    parser = argparse.ArgumentParser()
    attention.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--lengths", 1000], "multiples of --window 256.*Received: 1000"),
        (["--lengths", 0], "Received: 0"),
        (["--lengths", -256], "Received: -256"),
        (["--window", 0], "--window must be at least 1. Received: 0"),
        (["--repeats", 0], "--repeats must be at least 1"),
        (["--threads", 0], "--threads must be at least 1"),
        (["--window", "sqrt", "--lengths", 0], "--window sqrt.*Received: 0"),
        (["--heads", -1], "--heads must be at least 1"),
        (["--plot", "figure.txt"], "--plot must end in .png or .svg or .pdf"),
        (["--plot", __file__ + "/figure.png"], "--plot must be a file that can be written"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        attention.main(parse(*options))
    assert "\n" not in str(error.value)


def test_the_defaults_are_the_published_comparison():
    args = parse()
    attention.check(args)
    assert args.lengths == (1024, 2048, 4096, 8192, 16384, 32768)
    assert (args.heads, args.depth, args.window) == (8, 64, 256)
    assert tuple(args.kinds) == operations.KINDS == tuple(kinds.ATTENTION)


def test_a_window_of_the_root_makes_about_as_many_clusters_as_members():
    args = parse("--window", "sqrt", "--lengths", 4096, 1000)
    attention.check(args)
    found = {n: attention.window_of(n, "sqrt") for n in (4096, 8192, 16384, 1000, 17)}
    assert found == {4096: 64, 8192: 128, 16384: 128, 1000: 40, 17: 17}
    assert attention.window_of(4096, 256) == 256


@pytest.mark.end_to_end
def test_table_figures_and_plot_of_a_small_run(tmp_path, capsys):
    options = ["--kinds", "nearest_shared", "--lengths", 32, "--window", 16, "--rivals"]
    options += ["--heads", 2, "--depth", 4, "--repeats", 3, "--threads", 1]
    result = attention.main(parse(*options, "--plot", tmp_path / "a.png"))

    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].split()[:3] == ["32", "nearest", "shared"]
    assert "n = 32, forward + backward, nearest_shared: ready, peak" in printed.err
    assert "cores of" in result["machine"] and result["settings"]["threads"] == 1
    assert [figure["direction"] for figure in result["figures"]] == ["forward", "forward_backward"]
    for figure in result["figures"]:
        assert (figure["kind"], figure["length"], figure["clusters"]) == ("nearest_shared", 32, 2)
        assert figure["seconds"] == sorted(figure["runs"])[1] > 0
        assert figure["times_as_fast_as"] == {} and figure["package"] == "rt_keras"
        assert figure["times_floor"] == pytest.approx(figure["seconds"] / figure["floor_seconds"])
        assert figure["peak_bytes"] > 10**6
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


SMALL = ["--heads", 1, "--depth", 4, "--window", 4, "--repeats", 1, "--threads", 2]
SECONDS = {"full": 8.0, "local": 2.0, "kmeans_attention": 4.0, attention.PRODUCT: 0.5}


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

    monkeypatch.setattr(attention.workers, "contest", contest)
    return held


KMEANS = {"kmeans_attention": ("json", "routing_transformer")}


def test_times_are_compared_with_full_attention_and_rivals_at_the_same_length(
    contests, monkeypatch
):
    monkeypatch.setattr(rivals, "versions", lambda chosen: {"routing-transformer": "1"})
    args = parse(*SMALL, "--lengths", 8, 4, "--kinds", "local", "full")
    result = attention.measure(args, KMEANS)
    assert len(result["figures"]) == 2 * 2 * 3
    assert {contest["kmeans_attention"]["imports"] for contest in contests} == {
        ("json", "routing_transformer")
    }
    for figure in result["figures"]:
        seconds = SECONDS[figure["kind"]]
        assert figure["times_as_fast_as"] == {
            "full": 8.0 / seconds,
            "local": 2.0 / seconds,
            "kmeans_attention": 4.0 / seconds,
        }
        assert ("times_floor" in figure) == (figure["package"] == "rt_keras")
    slopes = {(slope["quantity"], slope["slope"]) for slope in result["slopes"]}
    assert len(result["slopes"]) == 12 and ("peak_bytes", 0.0) in slopes
    assert attention.report(result).splitlines()[-1].split()[-3:] == ["2.0", "0.5", "1.0"]


def test_the_floor_is_operations_over_the_rate_of_the_product_of_matrices(contests):
    result = attention.measure(parse(*SMALL, "--lengths", 8, "--kinds", "full"), {})
    for figure in result["figures"]:
        needed = operations.count("full", figure["direction"], 8, 1, 4, 4)
        rate = 2 * operations.SIZE**3 / SECONDS[attention.PRODUCT]
        assert figure["operations"] == needed
        assert figure["floor_seconds"] == pytest.approx(needed / rate)
        assert figure["times_floor"] == pytest.approx(8.0 * rate / needed)


def test_the_window_of_a_length_is_that_of_its_contenders(contests):
    options = [*SMALL, "--window", "sqrt", "--lengths", 16, 64, "--kinds", "full"]
    result = attention.measure(parse(*options), {})
    assert {(f["length"], f["window"], f["clusters"]) for f in result["figures"]} == {
        (16, 4, 4),
        (64, 8, 8),
    }
    assert [contest["full"]["arguments"]["window"] for contest in contests] == [4, 4, 8, 8]


def test_a_point_that_fails_is_left_out(contests):
    args = parse(*SMALL, "--lengths", 8, "--kinds", "nearest_shared", "local")
    result = attention.measure(args, {})
    assert {figure["kind"] for figure in result["figures"]} == {"local"}
    assert result["figures"][0]["times_as_fast_as"] == {"local": 1.0}
    args.kinds = ["nearest_shared"]
    with pytest.raises(RuntimeError, match="every contender failed"):
        attention.measure(args, {})


def test_a_row_whose_gradient_failed_shows_the_forward_pass():
    figure = {"kind": "full", "direction": "forward", "length": 1024, "clusters": 4}
    figure |= {"seconds": 0.5, "times_as_fast_as": {"full": 1.0}, "peak_bytes": 10**9}
    settings = {"heads": 8, "window": 256, "depth": 64}
    result = {"machine": "a machine", "settings": settings, "figures": [figure]}
    assert attention.report(result).splitlines()[-1].split() == [
        *["1,024", "full", "0.5000", "-", "1,000"],
        *["-", "-", "-", "-"],
    ]
