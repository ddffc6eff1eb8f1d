import json

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks import pretrained, pretrained_measure
from rt_keras.models.adapted.default_heads import default_head_groups, few_look_far
from tests.benchmarks import checks
from tests.models.adapted.checks import make_backbone
from tests.models.adapted.llama_folder import write_llama

TEXT = "the cat sat on the mat, and the dog sat on the log. "
LENGTH = 200


def parse(folder, *options, model="llama", **others):
    (folder / "text.txt").write_text(400 * TEXT, encoding="utf-8")
    needed = {"model": folder / model, "text": folder / "text.txt"}
    return checks.parse(pretrained, *options, **needed, **others)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the folder of a language model and that of an encoder."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "llama")
    make_backbone("Bert").save_to_preset(folder / "bert")
    return folder


@pytest.fixture(scope="module")
def full(folder):
    return pretrained_measure.load(str(folder / "llama"), "full")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("llama", ["--lengths", "100"], "--lengths must be at least 128. Received: 100"),
        ("llama", ["--kinds", "nonsense"], "--kinds must be among keras_hub, full, .*: nonsense"),
        ("llama", ["--kinds", "window:keys=3"], "window has the options none. Received: keys"),
        ("llama", ["--kinds", "blocks:keys=3"], "the options .*block_size, .* Received: keys"),
        ("bert", [], "--model must be a language model. Received: .*bert"),
    ],
)
def test_bad_options_are_refused(folder, model, options, message):
    with pytest.raises(ValueError, match=message):
        pretrained.check(parse(folder, *options, model=model))


def figure(kind, keys, book):
    settings = {"model": "llama", "text": "text.txt", "other": "b.txt", "kind": kind}
    others = {"again": 0.5, "needles": 0.8, "seconds": 1.5, "gigabytes": 0.25}
    others |= {"token_seconds": 0.02, "machine": "a machine"}
    return {"settings": {**settings, "length": 1000}, **others, "keys": keys, "book": book}


def test_the_table_says_what_is_lost_to_full_attention():
    lines = pretrained.report([figure("full", 750.0, 3.25), figure("blocks", 388.0, 3.5)])
    lines = lines.splitlines()
    assert lines[:2] == ["llama on text.txt, needles in b.txt", "a machine"]
    expected = "1,000 blocks 388 3.5000 0.2500 0.500 80% 1.50 0.25 20.0"
    assert lines[-1].split() == expected.split()


@pytest.mark.weekly
def test_cells_are_measured_once_in_processes_and_kept(folder, tmp_path, monkeypatch, capfd):
    path = tmp_path / "figures.json"
    options = ["--lengths", "200", "--kinds", "full", "--needles", "1"]
    (losses,) = pretrained.main(parse(folder, *options, "--losses-only", json=path))["figures"]
    assert {*losses} == {"settings", "machine", "keys", "book", "again", "by_position"}
    shown = capfd.readouterr().out
    assert "again" in shown and "prefill" not in shown
    # Without processes.
    monkeypatch.setattr(
        pretrained.runs, "alone", lambda target, *cell: pretrained_measure.measure(*cell)
    )
    result = pretrained.main(parse(folder, *options, json=path))
    assert json.loads(path.read_text()) == result
    found = result["figures"][-1]
    assert found["keys"] == 150.5 and found["seconds"] > 0
    assert found["book"] == pytest.approx(losses["book"], rel=1e-6)
    assert len(found["needles_at_depths"]) == 1 and "needles" in capfd.readouterr().out
    with pytest.raises(ValueError, match="text.txt has .* tokens; 90,000 are needed"):
        pretrained.main(parse(folder, "--lengths", "90000", "--kinds", "full"))


@pytest.mark.weekly
def test_kinds_with_every_key_in_reach_score_as_the_model_of_keras_hub(folder, tmp_path):
    (tmp_path / "text.txt").write_text(20 * TEXT, encoding="utf-8")
    texts = 2 * [str(tmp_path / "text.txt")]
    original, *others = (
        pretrained_measure.measure(str(folder / "llama"), *texts, kind, LENGTH, losses_only=True)
        for kind in ("keras_hub", "full", "content_blocks:rotary_distance=24")
    )
    for found in others:
        for name in ("book", "again"):
            assert abs(found[name] - original[name]) < 1e-4
        assert found["keys"] == 150.5


def test_losses_are_those_of_the_whole_model(full, folder):
    ids = full.tokens(20 * TEXT)[:60]
    hidden, _ = full.read(ids)
    found = full.losses(hidden, ids)
    model = keras_hub.models.CausalLM.from_preset(str(folder / "llama"))
    logits = model({"token_ids": ids[None], "padding_mask": np.ones([1, 60])})
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[1:], logits[0, :-1])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_what_is_scored():
    found = pretrained_measure.losses_of(np.arange(1, 40), 40)
    # Tokens 20 to 29 of the text, and 38 and 39, from the ninth of the repetition on.
    assert found == {"book": 24.5, "again": 38.5, "by_position": [15.0]}


def test_the_needle_stands_where_it_should_and_the_answer_at_the_end(full):
    tokenizer = full.model.preprocessor.tokenizer
    for depth in (0.1, 0.9):
        ids, answer = pretrained_measure.needle(full, full.tokens(20 * TEXT), LENGTH, depth, 0)
        shown = tokenizer.detokenize(ids)
        number = tokenizer.detokenize(ids[-answer:])
        assert len(ids) == LENGTH and shown.endswith(f"The magic number is{number}")
        place = shown.index(f" The magic number is{number}.") / len(shown)
        assert abs(place - depth * 0.7) < 0.1


@pytest.mark.weekly
def test_keys_are_counted_and_those_of_long_texts_estimated(monkeypatch):
    # Longer than a window of blocks, 1,024, in the second half too.
    length, blocks = 2048, "content_blocks:num_blocks=5"
    # From position 1,024 on: blocks of 256 and three before; four first tokens; 5 others.
    window = np.mean(np.arange(length // 2, length) % 256 + 1 + 768)
    counted = pretrained_measure.keys_seen(blocks, length)
    assert abs(counted - window - 24) < 0.3
    monkeypatch.setattr(pretrained_measure, "KEYS_COUNTED", 700)
    assert abs(pretrained_measure.keys_seen(blocks, length) / counted - 1) < 0.02


@pytest.mark.parametrize("family, few", [("Llama3", False), ("Gemma3", True)])
def test_content_blocks_are_the_default_of_adapt(family, few):
    backbone = make_backbone(family)
    (default,), _ = default_head_groups(backbone)
    assert few_look_far(backbone) == few
    (group,) = pretrained_measure.head_groups("content_blocks", default.num_heads, few)
    assert repr(group.key_sets) == repr(default.key_sets)
