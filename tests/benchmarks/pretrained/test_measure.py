import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.pretrained import measure as measure_module
from rt_keras.benchmarks.pretrained import readers
from rt_keras.benchmarks.pretrained.measure import (
    keys_seen,
    losses_of,
    measure,
    needle,
    text_and_passage,
)
from tests.models.adapted.llama_folder import write_llama

TEXT = "the cat sat on the mat, and the dog sat on the log. " * 20
LENGTH = 200


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def full(llama):
    return readers.load(llama, "full", 40)


@pytest.mark.weekly
def test_kinds_with_every_key_in_reach_score_as_the_model_of_keras_hub(llama, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    text = str(tmp_path / "text.txt")
    kinds = ["keras_hub", "full", "content_blocks:rotary_distance=24"]
    original, *others = (
        measure(llama, text, text, kind, LENGTH, losses_only=True) for kind in kinds
    )
    for figure in others:
        for name in ("book", "again"):
            assert abs(figure[name] - original[name]) < 1e-4
        assert figure["keys"] == 150.5
    scaled = measure(llama, text, text, "full_scaled", LENGTH, losses_only=True)
    assert abs(scaled["book"] - original["book"]) > 1e-4
    found = readers.load(llama, kinds[2], LENGTH).model.adaptation.layers[0].head_groups[0]
    assert "rotary_distance=24" in found.heads


def test_losses_are_those_of_the_whole_model(full, llama):
    ids = full.tokens(TEXT)[:60]
    hidden, _ = full.read(ids)
    found = full.losses(hidden, ids)
    model = keras_hub.models.CausalLM.from_preset(llama)
    logits = model({"token_ids": ids[None], "padding_mask": np.ones([1, 60])})
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[1:], logits[0, :-1])
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.weekly
def test_tokens_are_written_behind_the_sequence(llama):
    reader = readers.load(llama, "window_first", 40)
    ids = reader.tokens(TEXT)[:60]
    _, cache = reader.read(ids)
    # The first input token has id 1.
    token = reader.write(cache, 60, tf.constant(1))
    hidden, _ = reader.read(np.append(ids, np.int32(1)))
    assert token.numpy() == np.argmax(reader.logits(hidden[-1:]))


def test_what_is_scored():
    ids = text_and_passage(np.arange(10, 90), [1], 40)
    assert ids.tolist() == [1, *range(10, 39), *range(10, 20)]
    found = losses_of(np.arange(1, 40), 40)
    # Tokens 20 to 29 of the text, and 38 and 39, from the ninth of the repetition on.
    assert found == {"book": 24.5, "again": 38.5, "by_position": [15.0]}


def test_the_needle_stands_where_it_should_and_the_answer_at_the_end(full):
    tokenizer = full.model.preprocessor.tokenizer
    for depth in (0.1, 0.9):
        ids, answer = needle(full, full.tokens(TEXT), LENGTH, depth, 0)
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
    counted = keys_seen(blocks, length)
    assert abs(counted - window - 24) < 0.3
    monkeypatch.setattr(measure_module, "KEYS_COUNTED", 700)
    assert abs(keys_seen(blocks, length) / counted - 1) < 0.02


@pytest.mark.weekly
def test_an_encoders_kinds_see_64_keys():
    for kind, keys in {"content_blocks": 64, "window": 63, "full": 512}.items():
        assert abs(keys_seen(kind, 512, causal=False) - keys) < 0.6
