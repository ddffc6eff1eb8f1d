"""Tests of the recall benchmark."""

import argparse

import numpy as np
import pytest

from rt_keras.benchmarks import recall


def test_second_half_repeats_the_first():
    batches = list(recall.sequences(seed=3).take(2))
    for inputs, labels, weights in batches:
        tokens = inputs.numpy()
        half = recall.LENGTH // 2
        assert tokens.shape == (recall.BATCH, recall.LENGTH)
        assert tokens.min() >= 0 and tokens.max() < recall.VOCABULARY
        np.testing.assert_array_equal(tokens[:, half:], tokens[:, :half])
        np.testing.assert_array_equal(labels[:, :-1], tokens[:, 1:])
        # What has weight can be known: it stood one period earlier.
        np.testing.assert_array_equal(labels[:, half:], labels[:, :half])
        np.testing.assert_array_equal(weights, np.arange(recall.LENGTH) >= half * np.ones((32, 1)))
    assert (batches[0][1].numpy() != batches[1][1].numpy()).any()


def test_seeds_draw_different_sequences():
    first, again, other = (next(iter(recall.sequences(seed)))[1].numpy() for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_repetition_lies_beyond_local_heads():
    assert recall.keys_of_a_query("local") < recall.LENGTH // 2


@pytest.mark.parametrize("kind", recall.KINDS)
def test_sparse_kinds_see_a_quarter_at_most(kind):
    assert kind == "full" or recall.keys_of_a_query(kind) <= recall.LENGTH // 4


def test_models_are_of_about_equal_size():
    sizes = {kind: recall.build(kind).count_params() for kind in ("full", "local", "nearest")}
    assert max(sizes.values()) <= 1.05 * min(sizes.values())


def test_steps_to():
    between = recall.STEPS_BETWEEN_TESTS
    assert recall.steps_to([0.1, 0.9, 0.8, 0.95], 0.9) == 2 * between
    assert recall.steps_to([0.1, 0.2], 0.9) is None


@pytest.mark.end_to_end
def test_command_trains_and_prints(capsys):
    parser = argparse.ArgumentParser()
    recall.add_arguments(parser)
    result = recall.main(parser.parse_args(["--kinds", "nearest", "--steps", "50"]))
    (figure,) = result["figures"]
    assert figure["kind"] == "nearest" and len(figure["accuracy"]) == 1
    assert 0 <= figure["accuracy"][0] <= 1
    assert set(figure["cluster_use"]) == {
        f"routing_{i}_{what}" for i in range(2) for what in ("fullest", "empty", "entropy")
    }
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].split()[:2] == ["nearest", f"{figure['weights']:,}"]
    assert "step 50 of 50" in printed.err


@pytest.mark.parametrize(
    "arguments, message",
    [(["--kinds", "nearby"], "nearby"), (["--steps", "3"], "--steps must be at least 50")],
)
def test_wrong_options(arguments, message):
    parser = argparse.ArgumentParser()
    recall.add_arguments(parser)
    with pytest.raises(ValueError, match=message):
        recall.main(parser.parse_args(arguments))
