import argparse

import pytest

from rt_keras.benchmarks import decode, rivals


def parse(*options):
    parser = argparse.ArgumentParser()
    decode.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--lengths", 1000], "multiples of --window 128.*Received: 1000"),
        (["--lengths", 128], "--lengths must be greater than --tokens 128 and 4. Received: 128"),
        (["--tokens", 0], "--tokens must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        decode.main(parse(*options))
    assert "\n" not in str(error.value)


def test_the_defaults_are_the_published_comparison():
    args = parse()
    decode.check(args)
    assert args.lengths == (1024, 4096, 16384) and args.tokens == 128


SHAPE = {"window": 8, "layers": 1, "width": 16}
SMALL = ["--window", 8, "--layers", 1, "--width", 16, "--tokens", 16, "--repeats", 3]
RIVALS = {"routing_transformer": ("torch", "routing_transformer")}


def test_seconds_are_those_of_one_token(monkeypatch):
    held = []

    def contest(contenders, repeats, threads, where):
        held.append(contenders)
        figure = {"seconds": 8.0, "runs": [4.0, 8.0, 12.0], "peak_bytes": 5 * 10**6}
        return {name: dict(figure) for name in contenders}

    monkeypatch.setattr(decode.workers, "contest", contest)
    monkeypatch.setattr(rivals, "versions", lambda chosen: {})
    options = [*SMALL, "--lengths", 64, 128, "--kinds", "full", "balanced_shared"]
    result = decode.measure(parse(*options), RIVALS)
    counts = {"full": 16, "balanced_shared": 4, "routing_transformer": 4}
    for contenders, length in zip(held, (64, 128)):
        for name, count in counts.items():
            arguments = contenders[name]["arguments"]
            assert (arguments["length"], arguments["tokens"]) == (length, count)
    assert len(result["figures"]) == 6
    for figure in result["figures"]:
        count = counts[figure["kind"]]
        assert figure["seconds"] == 8.0 / count and figure["runs"][0] == 4.0 / count
        assert figure["cached"] == (figure["kind"] == "full")
    assert result["figures"][0]["times_as_fast_as"] == {"full": 1.0, "routing_transformer": 4.0}
    last = decode.report(result).splitlines()[-1].split()
    assert last == ["128", "routing", "transformer", "no", "2000.000", "5", "0.25", "1"]


def test_nothing_that_could_be_measured_is_an_error(monkeypatch):
    monkeypatch.setattr(decode.workers, "contest", lambda *_: {})
    with pytest.raises(RuntimeError, match="every contender failed"):
        decode.measure(parse(*SMALL, "--lengths", 64), {})


@pytest.mark.end_to_end
def test_what_keeps_a_cache_is_said_truly():
    from rt_keras.benchmarks import models

    for kind, cached in decode.CACHED.items():
        assert models.build(kind, 32, **SHAPE).cached_decoding == cached


@pytest.mark.end_to_end
def test_table_and_figures_of_a_small_run(capsys):
    options = ["--kinds", "nearest_shared", "--lengths", 32, "--tokens", 8, "--window", 8]
    options += ["--layers", 1, "--width", 16, "--repeats", 1, "--rivals"]
    result = decode.main(parse(*options))
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == [
        "32",
        "nearest",
        "shared",
        "yes",
    ]
    (figure,) = result["figures"]
    assert figure["seconds"] > 0 and figure["tokens"] == 8
