import functools

import pytest

from rt_keras.benchmarks import attention, kinds, operations, rivals
from tests.benchmarks import checks

parse = functools.partial(checks.parse, attention)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--lengths", 1000], "multiples of --window 256.*Received: 1000"),
        (["--window", "sqrt", "--lengths", 0], "--window sqrt.*Received: 0"),
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


@pytest.mark.weekly
def test_table_figures_and_plot_of_a_small_run(tmp_path, capsys):
    options = ["--kinds", "nearest_shared", "--lengths", 32, "--window", 16, "--rivals"]
    options += ["--heads", 2, "--depth", 4, "--repeats", 3, "--threads", 1]
    result = attention.main(parse(*options, "--plot", tmp_path / "a.png"))

    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].split()[:3] == ["32", "nearest", "shared"]
    assert "n = 32, forward + backward, nearest_shared: ready, peak" in printed.err
    assert [figure["direction"] for figure in result["figures"]] == ["forward", "forward_backward"]
    for figure in result["figures"]:
        assert (figure["kind"], figure["length"], figure["clusters"]) == ("nearest_shared", 32, 2)
        assert figure["seconds"] == sorted(figure["runs"])[1] > 0
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


def test_times_are_compared_with_full_attention_and_rivals_at_the_same_length(
    contests, monkeypatch
):
    monkeypatch.setattr(rivals, "versions", lambda chosen: {})
    args = parse(*SMALL, "--lengths", 8, 4, "--kinds", "local", "full")
    result = attention.measure(args, {"kmeans_attention": ("json", "torch")})
    assert len(result["figures"]) == 2 * 2 * 3
    assert all(x["kmeans_attention"]["imports"] == ("json", "torch") for x in contests)
    for figure in result["figures"]:
        seconds = SECONDS[figure["kind"]]
        ratios = {name: x / seconds for name, x in SECONDS.items() if name != attention.PRODUCT}
        assert figure["times_as_fast_as"] == ratios
        assert ("times_floor" in figure) == (figure["package"] == "rt_keras")
        if figure["kind"] == "full":
            sizes = figure["length"], 1, 4, 4
            needed = operations.count("full", figure["direction"], *sizes)
            rate = 2 * operations.SIZE**3 / SECONDS[attention.PRODUCT]
            assert figure["floor_seconds"] == pytest.approx(needed / rate)
            assert figure["times_floor"] == pytest.approx(8.0 * rate / needed)
    slopes = {(slope["quantity"], slope["slope"]) for slope in result["slopes"]}
    assert len(result["slopes"]) == 12 and ("peak_bytes", 0.0) in slopes
    assert attention.report(result).splitlines()[-1].split()[-3:] == ["2.0", "0.5", "1.0"]


def test_a_window_of_the_root_makes_about_as_many_clusters_as_members(contests):
    found = {n: attention.window_of(n, "sqrt") for n in (4096, 8192, 16384, 1000, 17)}
    assert found == {4096: 64, 8192: 128, 16384: 128, 1000: 40, 17: 17}
    assert attention.window_of(4096, 256) == 256
    options = [*SMALL, "--window", "sqrt", "--lengths", 16, 64, "--kinds", "full"]
    sizes = [(f["length"], f["window"]) for f in attention.measure(parse(*options), {})["figures"]]
    assert set(sizes) == {(16, 4), (64, 8)}
    assert [contest["full"]["arguments"]["window"] for contest in contests] == [4, 4, 8, 8]


def test_a_point_that_fails_is_left_out(contests):
    args = parse(*SMALL, "--lengths", 8, "--kinds", "nearest_shared", "local")
    result = attention.measure(args, {})
    assert {figure["kind"] for figure in result["figures"]} == {"local"}
    assert result["figures"][0]["times_as_fast_as"] == {"local": 1.0}
    # A row whose gradient failed shows the forward pass.
    result["figures"] = result["figures"][:1]
    row = attention.report(result).splitlines()[-1].split()
    assert row[:3] == ["8", "local", "2.0000"] and row[4:] == ["5", *"----"]
    args.kinds = ["nearest_shared"]
    with pytest.raises(RuntimeError, match="every contender failed"):
        attention.measure(args, {})
