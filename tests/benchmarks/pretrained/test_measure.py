import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.benchmarks.pretrained import measure as measure_module
from rt_keras.benchmarks.pretrained import readers
from rt_keras.benchmarks.pretrained.kinds import MEANINGS, head_groups
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
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.mark.end_to_end
def test_all_kinds_with_every_key_in_reach_score_alike(llama, text):
    kinds = ["keras_hub", "full", "window_first", "oracle:num_keys=3"]
    figures = [measure(llama, text, text, kind, LENGTH) for kind in kinds]
    for figure in figures[1:]:
        for name in ("book", "again"):
            assert abs(figure[name] - figures[0][name]) < 1e-4
        assert figure["needles_at_depths"] == figures[0]["needles_at_depths"]
        assert figure["keys"] == 150.5
    for figure in figures:
        assert figure["seconds"] > 0 and figure["first_seconds"] > 0
        # This process may have used more memory before.
        assert figure["gigabytes"] >= 0
        assert len(figure["needles_at_depths"]) == 5


@pytest.mark.end_to_end
def test_positions_beyond_the_trained_length(llama, text):
    assert rt_keras.adapt(llama).backbone.trained_length < LENGTH
    kinds = ["full", "full_scaled", "content_blocks", "content_blocks:rotary_distance=24"]
    full, scaled, *of_blocks = (
        measure(llama, text, text, kind, LENGTH, losses_only=True) for kind in kinds
    )
    assert abs(full["book"] - scaled["book"]) > 1e-4
    # The window covers the whole text, so no key is outside it.
    assert abs(of_blocks[0]["book"] - of_blocks[1]["book"]) < 1e-5
    assert of_blocks[0]["keys"] == of_blocks[1]["keys"]
    found = readers.load(llama, kinds[3], LENGTH).model.adaptation.layers[0].head_groups[0]
    assert "rotary_distance=24" in found.heads


@pytest.mark.end_to_end
def test_clustered_heads_are_fitted_to_the_other_text(llama, text):
    figure = measure(llama, text, text, "clustered", 400)
    assert np.isfinite(figure["book"]) and figure["keys"] == 300.5


def test_losses_are_those_of_the_whole_model(llama):
    reader = readers.load(llama, "full", 40)
    ids = reader.tokens(TEXT)[:60]
    hidden, _ = reader.read(ids)
    found = reader.losses(hidden, ids)
    model = keras_hub.models.CausalLM.from_preset(llama)
    logits = model({"token_ids": ids[None], "padding_mask": np.ones([1, 60])})
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[1:], logits[0, :-1])
    np.testing.assert_allclose(found, expected, atol=1e-4)


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


def test_the_needle_stands_where_it_should_and_the_answer_at_the_end(llama):
    reader = readers.load(llama, "full", 40)
    tokenizer = reader.model.preprocessor.tokenizer
    for depth in (0.1, 0.9):
        ids, answer = needle(reader, reader.tokens(TEXT), LENGTH, depth, 0)
        shown = tokenizer.detokenize(ids)
        number = tokenizer.detokenize(ids[-answer:])
        assert len(ids) == LENGTH and shown.endswith(f"The magic number is{number}")
        place = shown.index(f" The magic number is{number}.") / len(shown)
        assert abs(place - depth * 0.7) < 0.1


# Longer than a window of blocks, 1,024, in the second half too.
LONG, BLOCKS = 2048, "content_blocks:num_blocks=5"


@pytest.fixture(scope="module")
def keys_of_blocks():
    return keys_seen(BLOCKS, LONG)


@pytest.mark.end_to_end
def test_keys_are_counted(keys_of_blocks):
    # From position 1,024 on: blocks of 256 and three before; four first tokens; 5 others.
    own = np.arange(LONG // 2, LONG)
    window = np.mean(own % 256 + 1 + 768)
    assert abs(keys_seen("window_first", LONG) - window - 4) < 0.3
    assert abs(keys_of_blocks - window - 24) < 0.3


def test_an_encoders_kinds_see_64_keys():
    kinds = {"content_blocks": 64, "blocks": 64, "oracle": 64, "random": 64, "window": 63}
    for kind, keys in kinds.items():
        assert abs(keys_seen(kind, 512, causal=False) - keys) < 0.6
    for kind in ("full", "clustered"):
        assert keys_seen(kind, 512, causal=False) == 512


def test_every_kind_has_heads():
    for kind in MEANINGS:
        groups = head_groups(kind, 4)
        assert groups is None or sum(group.num_heads for group in groups) == 4


@pytest.mark.end_to_end
def test_keys_of_long_texts_are_estimated(keys_of_blocks, monkeypatch):
    monkeypatch.setattr(measure_module, "KEYS_COUNTED", 700)
    for kind, keys in {"full": (LONG / 2 + 1 + LONG) / 2, BLOCKS: keys_of_blocks}.items():
        assert abs(keys_seen(kind, LONG) / keys - 1) < 0.02
