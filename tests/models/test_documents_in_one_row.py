"""Tests of language models on rows with several documents; `contract` has those of all heads."""

import keras
import keras_hub
import numpy as np
import pytest

from rt_keras import adapt
from rt_keras.layers import FullHeads, GatedDeltaHeads, Heads, LocalRoutingHeads, StridedHeads
from rt_keras.layers.key_sets import FirstTokens, Window
from rt_keras.models import RoutingTransformerBackbone, RoutingTransformerCausalLM
from tests.models.adapted.checks import VOCABULARY, make_backbone

LENGTHS = [5, 9, 1, 6]
IDS = np.random.default_rng(0).integers(1, 50, size=[2, 21])
DOCUMENTS = np.repeat([[3, 4, 9, 3], [1, 2, 1, 0]], LENGTHS, axis=1)
INPUTS = {"token_ids": IDS, "padding_mask": np.ones_like(IDS)}


def model(heads, **options):
    keras.utils.set_random_seed(0)
    backbone = RoutingTransformerBackbone(50, 2, 32, 64, heads, **options)
    return RoutingTransformerCausalLM(backbone)


def in_rows(x):
    """Moves each document to a row of its own, `[8, 9]`, with padding."""
    x = np.concatenate(np.split(x, np.cumsum(LENGTHS)[:-1], axis=1), axis=1)
    parts = [part for row in x for part in np.split(row, np.cumsum(LENGTHS)[:-1])]
    return np.stack([np.pad(part, [0, 9 - len(part)]) for part in parts])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"max_sequence_length": 21}, {"sinusoidal_positions": True, "shift_tokens": True}],
    ids=lambda options: next(iter(options)),
)
def test_logits_losses_and_caches_are_those_of_each_document(options):
    lm = model([LocalRoutingHeads(2, 4, 4, 4), GatedDeltaHeads(2)], conv_kernel_size=3, **options)
    logits = lm({**INPUTS, "segment_ids": DOCUMENTS})
    alone = {name: in_rows(x) for name, x in INPUTS.items()}
    expected = np.asarray(lm(alone))[alone["padding_mask"] == 1]
    np.testing.assert_allclose(np.reshape(logits, expected.shape), expected, atol=1e-5)

    backbone, cache = lm.backbone, lm.backbone.new_cache(2, 22)
    _, cache = backbone.call_with_cache(IDS, cache, 0, segment_ids=DOCUMENTS)
    hidden, _ = backbone.call_with_cache(IDS[:, :1], cache, [6, 6])
    last = np.concatenate([IDS[:, 15:], IDS[:, :1]], axis=1)
    expected = backbone({"token_ids": last, "padding_mask": np.ones_like(last)})[:, -1]
    np.testing.assert_allclose(hidden[:, 0], expected, atol=1e-5)


def test_positions_replace_those_of_embeddings():
    lm = model([StridedHeads(2, 4)], max_sequence_length=21)
    places = np.broadcast_to(np.arange(21), IDS.shape)
    padded = dict(INPUTS, positions=places)
    padded = {name: np.pad(x, [[0, 0], [3, 0]])[:, :21] for name, x in padded.items()}
    short = {name: x[:, :18] for name, x in INPUTS.items()}
    np.testing.assert_allclose(lm(padded)[:, 3:], lm(short), atol=1e-6)
    np.testing.assert_allclose(lm({**INPUTS, "positions": places}), lm(INPUTS), atol=1e-6)
    assert np.abs(lm({**INPUTS, "positions": places[:, ::-1]}) - lm(INPUTS)).max() > 0.01


@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_an_adapted_model_in_a_graph_of_shared_blocks_separates_documents(family):
    lm = getattr(keras_hub.models, f"{family}CausalLM")(
        preprocessor=None, backbone=make_backbone(family)
    )
    lm = adapt(lm, [Heads(4, [Window(4), FirstTokens(2)])])
    inputs = {**INPUTS, "token_ids": IDS % VOCABULARY}
    found = lm.predict({**inputs, "segment_ids": DOCUMENTS}, verbose=0)
    alone = {name: in_rows(x) for name, x in inputs.items()}
    expected = lm.predict(alone, verbose=0)[alone["padding_mask"] == 1]
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-4)


@pytest.mark.parametrize("family", [None, "Llama"])
def test_documents_begin_with_their_first_tokens(family):
    if family is None:
        lm = model([LocalRoutingHeads(2, 4, 4, 4), GatedDeltaHeads(2)], max_sequence_length=21)
    else:
        lm = keras_hub.models.LlamaCausalLM(make_backbone(family))
        lm = adapt(lm, [LocalRoutingHeads(4, 4, 4, 4)])
    mask = np.ones_like(IDS)
    mask[:, [0, 1, 5, 6, 7, 13, 15]] = 0
    inputs = {"token_ids": IDS % VOCABULARY, "padding_mask": mask}
    found = lm({**inputs, "segment_ids": DOCUMENTS})
    expected = lm({name: in_rows(x) for name, x in inputs.items()})[in_rows(mask) == 1]
    np.testing.assert_allclose(found[mask == 1], expected, atol=1e-5)


def test_learned_positions_of_an_adapted_model_are_those_of_rows():
    lm = adapt(keras_hub.models.GPT2CausalLM(make_backbone("GPT2")), [FullHeads(4)])
    with pytest.raises(ValueError, match="segment_ids without positions, and none with learned"):
        lm({"token_ids": IDS % VOCABULARY, "padding_mask": IDS, "segment_ids": DOCUMENTS})


def test_ids_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"segment_ids must be \[batch, length\].*\(2, 20\)"):
        model([StridedHeads(2, 4)])({**INPUTS, "segment_ids": np.zeros([2, 20])})
    with pytest.raises(ValueError, match=r"segment_ids must be \[batch, length\].*\(21,\)"):
        model([StridedHeads(2, 4)])({**INPUTS, "segment_ids": DOCUMENTS[0]})


def test_a_row_of_a_state_continues_one_document():
    lm = model([LocalRoutingHeads(4, 4, 4, 4)])
    with pytest.raises(ValueError, match="one document.*Received: .*'segment_ids'"):
        lm.call_with_state({**INPUTS, "segment_ids": DOCUMENTS}, lm.new_state(2))
