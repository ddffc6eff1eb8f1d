import keras_hub
import numpy as np
import pytest

import rt_keras
from rt_keras.layers import Heads, MultiHeadAttention
from rt_keras.layers.key_sets import FirstTokens, SelectedBlocks, Window
from rt_keras.models.adapted.prompt_reading import state_of_rows
from rt_keras.ops.naive import naive_softmax
from tests.layers import checks
from tests.layers.test_split_heads import rotated
from tests.models.adapted.checks import make_inputs, outputs_of
from tests.models.adapted.llama_folder import write_llama

LENGTH, BLOCK, FIRST = 22, 4, 3
SETS = {
    "first tokens": lambda: [Window(BLOCK), FirstTokens(FIRST, rotary_distance=6)],
    # So many blocks that queries read all of them.
    "blocks": lambda: [
        Window(BLOCK),
        FirstTokens(FIRST, rotary_distance=30),
        SelectedBlocks(2, num_blocks=LENGTH, segment_size=BLOCK, rotary_distance=9),
    ],
    "blocks by deviation, grouped queries": lambda: [
        Window(BLOCK),
        SelectedBlocks(1, num_blocks=LENGTH, segment_size=BLOCK, rotary_distance=0),
    ],
}
SETS["first tokens, shared"] = SETS["first tokens"]
KEY_HEADS = {"blocks by deviation, grouped queries": 1}


def make_layer(name):
    """Returns a layer with rotary embeddings. KerasHub computes them in float32."""
    rotary = keras_hub.layers.RotaryEmbedding(dtype="float64")
    heads = Heads(2, SETS[name](), share_qk="shared" in name, dtype="float64")
    options = {"num_key_value_heads": KEY_HEADS.get(name), "rotary_embedding": rotary}
    layer = MultiHeadAttention([heads], key_dim=6, dtype="float64", **options)
    layer.build((1, None, 8), (1, None, 8))
    return layer


def distance_of(name, i, j):
    """Returns the distance of a key for the logits of a query, or None if it is not seen."""
    if j > i:
        return None
    if j >= (i // BLOCK - 1) * BLOCK:
        return i - j
    if "first tokens" in name:
        return 6 if j < FIRST else None
    if name == "blocks":
        return 30 if j < FIRST else 9
    return 0


def in_a_loop(layer, name, x):
    def projected(role):
        dense = getattr(layer, f"{role}_dense") or layer.query_dense
        y = x @ dense.kernel.numpy() + dense.bias.numpy()
        y = y.reshape(*y.shape[:2], -1, 6)
        return np.repeat(y, 2 // y.shape[2], axis=2)

    query, key, value = map(projected, ("query", "key", "value"))
    output = np.zeros_like(query)
    for row, i, head in np.ndindex(query.shape[:3]):
        seen = [(j, distance_of(name, i, j)) for j in range(i + 1)]
        seen = [(j, distance) for j, distance in seen if distance is not None]
        keys, distances = np.transpose(seen)
        turned = rotated(np.tile(query[row, i, head], (1, 1, len(keys), 1)), distances)[0, 0]
        weights = naive_softmax(np.sum(turned * key[row, keys, head], axis=-1) / np.sqrt(6), True)
        output[row, i, head] = weights @ value[row, keys, head]
    dense = layer.output_dense
    return output.reshape(*x.shape[:2], -1) @ dense.kernel.numpy() + dense.bias.numpy()


@pytest.mark.parametrize("name", SETS)
def test_equation(name):
    layer, x = make_layer(name), checks.random(2, LENGTH, 8, dtype="float64")
    found = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(found, in_a_loop(layer, name, x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SETS)
def test_steps_and_chunks(name):
    layer, x = make_layer(name), checks.random(2, LENGTH, 8, dtype="float64")
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 17), expected, rtol=0, atol=1e-6)
    checks.chunks_are_one_pass(layer, x, 1e-6)


@pytest.mark.slow
def test_an_adapted_model_reads_chunks(tmp_path):
    """Chunks share their sines, and a scaled position stays a scaled position."""
    sets = [
        Window(8),
        FirstTokens(2, rotary_distance=20),
        SelectedBlocks(2, num_blocks=4, segment_size=8, rotary_distance=12),
    ]
    options = {"max_sequence_length": 80, "trained_length": 40}
    task = rt_keras.adapt(write_llama(tmp_path), [Heads(4, sets)], **options)
    inputs = make_inputs(task.backbone, 70, padded=0)
    hidden = task.hidden_states(inputs)
    tokens = inputs["token_ids"]
    prompts = tokens, np.full([len(tokens)], 70), state_of_rows(None, len(tokens), 80)
    _, found = task._read_prompts(*prompts, verbose=0, with_hidden=True)
    np.testing.assert_allclose(found[:, :70], hidden, rtol=0, atol=1e-4)
    own = [Window(8), FirstTokens(2), SelectedBlocks(2, num_blocks=4, segment_size=8)]
    plain = rt_keras.adapt(write_llama(tmp_path / "plain"), [Heads(4, own)], **options)
    plain.backbone.set_weights(task.backbone.get_weights())
    assert checks.largest_difference(outputs_of(plain, inputs), outputs_of(task, inputs)) > 1e-4


def test_bad_distances():
    with pytest.raises(ValueError, match="rotary_distance must be .* Received: rotary_distance=-1"):
        FirstTokens(2, rotary_distance=-1)
    heads = Heads(2, SETS["blocks"]())
    x = checks.random(1, 2, 8, 6)
    message = "FirstTokens with a rotary_distance requires a layer with a rotary_embedding"
    with pytest.raises(ValueError, match=message):
        heads(x, x, x, use_causal_mask=True)
