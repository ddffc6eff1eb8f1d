import functools
import json

import keras
import numpy as np
import pytest

from rt_keras import cli
from rt_keras.benchmarks import quality, quality_heads, quality_training
from rt_keras.benchmarks.quality_tasks import HELD_OUT, TASKS, MultiQueryRecall, Recall, Text
from rt_keras.layers import TransformerBlock
from tests.benchmarks import checks

SIZES = quality_heads.Sizes(keys=16, clusters=8)
SHAPE = {"kind": "local_and_nearest", "positions": "relative", "keys": 8, "clusters": 4}
SHAPE |= {"layers": 2, "width": 16}
parse = functools.partial(checks.parse, quality)


@pytest.fixture
def runs(monkeypatch):
    """The runs so far, as (task, kind, seed); they take no time."""
    made = []

    def train_alone(settings):
        made.append((settings["task"], settings["kind"], settings["seed"]))
        if settings["kind"] == "blocks":
            raise KeyboardInterrupt
        scores = {"steps": [20], "loss": [1.0], "accuracy": [0.5 + settings["seed"]]}
        return {**scores, "machine": "a machine", "groups": {}, "weights": 1, "seconds": 0.1}

    monkeypatch.setattr(quality, "train_alone", train_alone)
    return made


def test_every_kind_is_trained_once_for_each_seed(runs, capsys):
    quality.main(parse("--kinds", "full", "local", "full", "--seeds", 2))
    assert runs == [("recall", kind, seed) for seed in (0, 1) for kind in ("full", "local")]
    # The mean and the standard deviation.
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["local", "1.000", "0.707"]


def test_a_stopped_table_goes_on(runs, tmp_path, capsys):
    path = tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        quality.main(parse("--kinds", "full", "blocks", "local", "--json", path))
    assert [x["settings"]["kind"] for x in json.loads(path.read_text())["figures"]] == ["full"]
    runs.clear()
    quality.main(parse("--kinds", "full", "local", "--json", path))
    assert runs == [("recall", "local", 0)]
    assert f"already in {path}" in capsys.readouterr().err
    # Other settings are other runs. The file keeps both; the table shows those requested.
    result = quality.main(parse("--kinds", "full", "--steps", 40, "--json", path))
    assert len(result["figures"]) == 3 and "local" not in capsys.readouterr().out
    assert json.loads(path.read_text()) == result
    path.write_text('{"benchmark": "speed"}')
    with pytest.raises(ValueError, match="--json must be a new file or one from this command"):
        quality.main(parse("--json", path))


@pytest.mark.weekly
def test_the_command_trains_in_a_process_of_its_own(tmp_path, capfd):
    path = tmp_path / "a.json"
    command = ["benchmark", "quality", "--length", "32", "--steps", "20", "--layers", "1"]
    command += ["--width", "16", "--batch", "4", "--kinds", "local_and_nearest"]
    assert cli.main([*command, "--json", str(path)]) == 0
    (figure,) = json.loads(path.read_text())["figures"]
    # Chance is ln 64; twenty steps hardly change it.
    assert len(figure["loss"]) == 20
    assert all(loss == pytest.approx(4.16, abs=0.3) for loss in figure["loss"])
    printed = capfd.readouterr()
    assert "local_and_nearest on recall, seed 0: step 20, accuracy" in printed.err
    assert printed.out.splitlines()[-2].startswith("local and nearest")


def test_kinds_have_four_heads_in_blocks_with_or_without_convolutions():
    for name, kind in quality_heads.KINDS.items():
        assert sum(group.num_heads for group in kind.head_groups(4, SIZES)) == 4, name
    found, both = {}, "Window + Cluster of assignment 'nearest'"
    for kind in ("local_convolution", "local_convolution_below"):
        model = quality_training.build(Text(256), {**SHAPE, "kind": kind})
        blocks = [x.attention for x in model.layers if isinstance(x, TransformerBlock)]
        found[kind] = [(x.head_groups[0].kind, x.conv_kernel_size) for x in blocks]
    assert found == {
        "local_convolution": [("Window", 4)] * 2,
        "local_convolution_below": [("Window", 4), (both, None)],
    }


def test_sizes_of_clusters_and_blocks():
    _, group = quality_heads.KINDS["local_and_nearest"].head_groups(4, SIZES)
    assert (group.centroids.num_clusters, group.key_sets[0].window_size) == (8, 32)
    # The keys of two windows less.
    for keys, expected in ((96, (16, 4, 12)), (32, (4, 1, 20))):
        (heads,) = quality_heads.routed_blocks(4, quality_heads.Sizes(keys=keys, clusters=8))
        window, blocks = heads.key_sets
        assert (window.block_size, blocks.block_size, blocks.num_blocks) == expected


def test_group_losses_are_those_of_their_predictions(books, monkeypatch):
    monkeypatch.setattr(quality_training, "TEST_BATCHES", 2)
    task, settings = Text(32, str(books)), {**SHAPE, "seed": 0, "batch": 2}
    keras.utils.set_random_seed(0)
    model = quality_training.build(task, settings)
    found = quality_training.group_losses(model, task, settings)
    assert set(found) == {"near", "far", "new"}
    assert sum(group["share"] for group in found.values()) == pytest.approx(1)
    # The total loss, from Keras.
    losses = [
        keras.losses.sparse_categorical_crossentropy(targets, model(inputs), from_logits=True)
        for inputs, targets, _ in quality_training.batches(task, settings, held_out=True).take(2)
    ]
    mean = sum(group["share"] * (group["loss"] or 0) for group in found.values())
    assert mean == pytest.approx(float(np.mean(losses)), rel=1e-4)


def drawn(task, seed, held_out=False, count=1):
    batches = task.batches(seed, batch=4, held_out=held_out).take(count)
    return [tuple(x.numpy() for x in batch) for batch in batches]


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_repeated_by_seed_and_index_and_of_the_declared_shapes(name, books):
    task = TASKS[name](64, str(books))
    first, second = drawn(task, 3, count=2)
    for x, y in zip(first, drawn(task, 3)[0]):
        np.testing.assert_array_equal(x, y)
    others = [drawn(task, seed, out)[0][0] for seed in (0, HELD_OUT - 1) for out in (False, True)]
    different = [first[0], second[0], *others]
    for i, ours in enumerate(different):
        assert all((ours != other).any() for other in different[:i])
    tokens, targets, weights = first
    for x in (tokens, targets):
        assert x.min() >= 0 and x.max() < task.vocabulary_size and x.dtype == "int32"
    assert set(np.unique(weights)) <= {0, 1}
    np.testing.assert_array_equal(weights.sum(axis=1), task.scored)
    assert TASKS[name]().length == task.default_length


def test_every_scored_target_of_mqar_is_the_value_beside_its_key():
    task = MultiQueryRecall(256)
    for row, target, weight in zip(*task.sample(np.random.default_rng(1), 20, False)):
        context = row[:32].tolist()
        value_of = dict(zip(context[::2], context[1::2]))
        assert len(value_of) == len(set(value_of.values())) == 16
        assert all(0 < key < 4096 <= value for key, value in value_of.items())
        scored = np.flatnonzero(weight)
        assert (scored >= 32).all() and sorted(row[scored]) == sorted(value_of)
        assert [value_of[key] for key in row[scored]] == target[scored].tolist()


def test_what_recall_scores_stood_before_at_a_distance_drawn_anew():
    tokens, targets, weights = Recall(128).sample(np.random.default_rng(0), 64, False)
    distances = set()
    for row, target, weight in zip(tokens, targets, weights):
        scored = np.flatnonzero(weight)
        assert len(scored) == 47 and scored[-1] - scored[0] == 46
        # The distance to the earlier occurrence, by trying all.
        every = range(1, scored[0] + 1)
        (back,) = (d for d in every if (row[scored - d] == row[scored]).all())
        distances.add(back)
        # The token to predict follows the earlier one.
        np.testing.assert_array_equal(target[scored], row[scored - back + 1])
    assert len(distances) > 20 and min(distances) >= 48 and max(distances) <= 80
    # Local heads do not reach so far by default.
    assert quality_heads.reach(keys=8) < 48


def test_windows_of_text_are_of_the_files_of_their_split(books, tmp_path):
    for held_out, split in ((False, "train"), (True, "validation")):
        files = sorted((books / split).glob("*.txt"))
        whole = b"".join(file.read_bytes() + b"\0" for file in files)
        rows, targets, _ = Text(32, str(books)).sample(np.random.default_rng(0), 16, held_out)
        for row, target in zip(rows, targets):
            assert bytes([*row.tolist(), int(target[-1])]) in whole
            assert target[:-1].tolist() == row[1:].tolist()
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1.txt").write_text("once")
    with pytest.raises(ValueError, match="--directory must hold texts for validation. Received"):
        Text(8, str(tmp_path)).sample(np.random.default_rng(0), 1, True)


def test_groups_say_where_five_bytes_last_stood():
    rows = np.random.default_rng(0).integers(2, size=[3, 101])
    found = Text(100).groups(rows[:, :-1], rows[:, 1:], window=20)
    for row, groups in zip(rows.tolist(), found):
        for place in range(4, 101):
            match = row[place - 4 : place + 1]
            backs = (d for d in range(1, place - 3) if row[place - d - 4 : place - d + 1] == match)
            back = next(backs, None)
            expected = "new" if back is None else "near" if back <= 20 else "far"
            assert Text.group_names[groups[place - 1]] == expected
    assert set(found.ravel().tolist()) == {0, 1, 2}
