import argparse

import numpy as np
import pytest

from rt_keras.benchmarks import repetition


def parse(*options):
    parser = argparse.ArgumentParser()
    repetition.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--distances", 0], "--distances must be at least 1. Received: 0"),
        (["--rows", 0], "--rows must be at least 1"),
        (["--before", -1], "--before must be at least 0. Received: -1"),
        (["--memory-length", 100], "--memory-length must be at least 2048.* Received: 100"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        repetition.main(parse(*options))
    assert "\n" not in str(error.value)


def test_a_passage_comes_again_where_it_is_scored():
    inputs, labels, weights = next(iter(repetition.training_batches(seed=3)))
    tokens = np.concatenate([inputs["token_ids"], labels[:, -1:]], axis=1)
    np.testing.assert_array_equal(tokens[:, 1:], labels)
    scored = repetition.PASSAGE - repetition.KNOWN
    for row, of_row in zip(tokens, weights.numpy()):
        assert of_row.sum() in (0, scored)
        if of_row.any():
            again = int(np.argmax(of_row)) + 1 - repetition.KNOWN
            passage = row[again : again + repetition.PASSAGE]
            before = [
                row[start : start + repetition.PASSAGE].tolist()
                for start in range(again + 1 - repetition.PASSAGE)
            ]
            assert passage.tolist() in before


@pytest.fixture
def small(monkeypatch):
    sizes = {"PASSAGE": 12, "TRAINED_LENGTH": 64, "CHUNK": 32, "BLOCK_SIZE": 8, "VOCABULARY": 32}
    for name, size in sizes.items():
        monkeypatch.setattr(repetition, name, size)


def figures(*kinds):
    args = parse("--kinds", *kinds, "--distances", 200, "--steps", 150)
    args.clusters, args.window_size, args.memory_length, args.before = 8, 8, 128, 40
    return repetition.main(args)["figures"]


@pytest.mark.end_to_end
def test_a_memory_finds_what_a_window_has_forgotten(small, capsys):
    local, memory = figures("local", "memory_oldest")
    assert local["accuracy"] < 0.3 < 0.6 < memory["accuracy"]
    assert memory["distance"] == 7 * 32 - 12
    assert memory["kept"] == 2 * 8 + 8 * 8 + 8 * 128 and memory["seen"] == 2 * 8 + 8 + 4
    assert "memory oldest" in capsys.readouterr().out


@pytest.mark.end_to_end
def test_one_cluster_keeps_and_sees_all_tokens(small, monkeypatch):
    def untrained(kind, settings):
        return repetition.build(kind, settings, 64).get_weights()

    monkeypatch.setattr(repetition, "train", untrained)
    [found] = figures("one_cluster")
    assert found["kept"] == found["seen"] == (2 + 7) * 32 + 12


@pytest.mark.parametrize("kind", repetition.WHOLE)
def test_what_does_not_fit_is_left_out(kind, monkeypatch, capsys):
    monkeypatch.setattr(repetition, "train", lambda *_: None)
    monkeypatch.setattr(repetition, "MOST_KEPT", 99)
    assert repetition.main(parse("--kinds", kind, "--distances", 100))["figures"] == []
    assert f"{kind}: skipped at 100 tokens, more than it keeps" in capsys.readouterr().err
