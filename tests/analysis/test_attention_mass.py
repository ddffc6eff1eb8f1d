import types

import numpy as np
import pytest

import rt_keras
from rt_keras.analysis import attention_mass
from rt_keras.analysis.attention_mass import measure
from rt_keras.layers import FullHeads
from rt_keras.layers.attention_calls import attention_calls
from tests.models.adapted.checks import make_backbone
from tests.models.adapted.llama_folder import write_llama

LENGTH, PLACES = 40, np.arange(20, 40)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(3, 20, size=LENGTH)


@pytest.fixture
def small(monkeypatch):
    """A window and blocks for short sequences."""
    monkeypatch.setattr(attention_mass, "LOOK_BACK", 1)
    monkeypatch.setattr(attention_mass, "FIRST_TOKENS", 2)
    monkeypatch.setattr(attention_mass, "BLOCK_SIZE", 2)
    monkeypatch.setattr(attention_mass, "SEGMENT_SIZE", 8)


def adapted(folder):
    return rt_keras.adapt(folder, [FullHeads(1)], layers=[])


@pytest.mark.slow
def test_masses_are_sums_of_attention_weights(small, ids, tmp_path):
    model = adapted(write_llama(tmp_path / "llama"))
    rows = measure(model, ids, num_queries=100, num_keys=4)["heads"]
    assert [(row["layer"], row["head"]) for row in rows] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    inputs = {"token_ids": ids[None], "padding_mask": np.ones([1, LENGTH])}
    own, keys = PLACES[:, None], np.arange(LENGTH)
    near = own // 8 - keys // 8 <= 1
    for number, call in enumerate(attention_calls(model, inputs)):
        weights = np.concatenate(list(call.weights()), axis=-1)[0][:, PLACES]
        for row, of_head in zip(rows[4 * number :], weights):
            far = np.where(near | (keys < 2), 0, of_head)
            expected = {
                "keys": 1 + np.sum(np.cumsum(-np.sort(-of_head), axis=-1) < 0.9, axis=-1),
                "entropy": -np.sum(of_head * np.log(np.maximum(of_head, 1e-30)), axis=-1),
                "window": np.sum(of_head * near, axis=-1),
                "first_tokens": np.sum(of_head * (~near & (keys < 2)), axis=-1),
                "best_keys": np.sort(far)[:, -4:].sum(-1),
            }
            for name, x in expected.items():
                np.testing.assert_allclose(row[name], x.mean(), atol=1e-4)
            for name in ("blocks", "content_blocks"):
                assert 0 < row[name] <= row["best_keys"] + 1e-5
    # Enough blocks have all the mass.
    for row in measure(model, ids, num_keys=LENGTH)["heads"]:
        for name in ("blocks", "content_blocks"):
            whole = row["window"] + row["first_tokens"] + row[name]
            np.testing.assert_allclose(whole, 1, atol=1e-4)


@pytest.mark.slow
def test_layers_with_a_window_have_no_masses(small, ids, tmp_path):
    make_backbone("Gemma3").save_to_preset(tmp_path / "gemma")
    model = types.SimpleNamespace(backbone=adapted(tmp_path / "gemma"))
    found = measure(model, ids)
    windows = [row for row in found["heads"] if row["window"] is None]
    assert {row["layer"] for row in windows} == {0, 1, 2, 3, 4, 6}
    assert all(row["keys"] <= 5 for row in windows)
    lines = attention_mass.report(found).splitlines()
    assert lines[-1].split()[-1] == "-" and lines[-2].split()[-1] != "-"
