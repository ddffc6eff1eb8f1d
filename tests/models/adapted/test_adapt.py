import json

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import (
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    LSHHeads,
    MultiHeadAttention,
    RoutingHeads,
)
from rt_keras.models.adapted.backbones import attention_layers
from tests.models.adapted.checks import FAMILIES, make_backbone, make_inputs, outputs_of

SPARSE = [LocalHeads(2, 4), RoutingHeads(2, 2, 4, use_query_key_norm=False)]


@pytest.fixture(scope="module")
def bert():
    return make_backbone("Bert")


@pytest.mark.parametrize("family", FAMILIES)
def test_full_heads_give_what_the_original_gives_and_weights_come_back(family):
    original = make_backbone(family)
    inputs = make_inputs(original)
    expected = outputs_of(original, inputs)
    heads, layers = [FullHeads(4)], None
    if family == "Mistral":
        heads = [LocalHeads(4, 5, sliding_window=5)]
    if family == "Gemma3":
        layers = "global"
    adapted = rt_keras.adapt(original, heads, layers=layers)
    np.testing.assert_allclose(outputs_of(adapted, inputs), expected, atol=1e-5)
    # Unchanged blocks have the original heads, and a window in Mistral.
    other = rt_keras.adapt(original, SPARSE, layers=[])
    np.testing.assert_allclose(outputs_of(other, inputs), expected, atol=1e-5)
    restored = rt_keras.restore(adapted)
    assert type(restored) is type(original)
    for ours, theirs in zip(restored.weights, original.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_windows_of_qwen_stay():
    original = make_backbone("Qwen3", sliding_window_size=5)
    inputs = make_inputs(original)
    adapted = rt_keras.adapt(original, SPARSE, layers=[])
    np.testing.assert_allclose(outputs_of(adapted, inputs), outputs_of(original, inputs), atol=1e-5)
    whole = outputs_of(make_backbone("Qwen3"), inputs)
    assert np.abs(outputs_of(adapted, inputs) - whole).max() > 1e-2


def test_mistral_without_a_window():
    original = make_backbone("Mistral", sliding_window=None, head_dim=8)
    inputs = make_inputs(original)
    adapted = rt_keras.adapt(original, [FullHeads(4)])
    np.testing.assert_allclose(outputs_of(adapted, inputs), outputs_of(original, inputs), atol=1e-5)


def test_only_chosen_layers_change(bert):
    inputs = make_inputs(bert)
    adapted = rt_keras.adapt(bert, SPARSE, layers=[1])
    kinds = [
        [type(group).__name__ for group in block._self_attention_layer.head_groups]
        for block in adapted.transformer_layers
    ]
    assert kinds == [["FullHeads"], ["LocalHeads", "RoutingHeads"]]
    assert np.abs(outputs_of(adapted, inputs) - outputs_of(bert, inputs)).max() > 1e-2


@pytest.mark.end_to_end
def test_short_inputs_keep_full_attention(bert):
    inputs, short = make_inputs(bert), make_inputs(bert, length=8)
    adapted = rt_keras.adapt(bert, SPARSE, dense_below=16)
    np.testing.assert_allclose(outputs_of(adapted, short), outputs_of(bert, short), atol=1e-5)
    assert np.abs(outputs_of(adapted, inputs) - outputs_of(bert, inputs)).max() > 1e-2
    # Lengths that are only known at run time are compared then.
    names = list(short)
    dynamic = tf.function(
        lambda *x: adapted(dict(zip(names, x)))["sequence_output"],
        input_signature=[tf.TensorSpec([None, None], tf.int32)] * len(names),
    )
    real = short["padding_mask"].astype(bool)
    found = np.asarray(dynamic(*short.values()))[real]
    np.testing.assert_allclose(found, outputs_of(bert, short), atol=1e-5)


def test_full_heads_beside_others_are_dense_at_any_length(bert):
    short = make_inputs(bert, length=8)
    adapted = rt_keras.adapt(bert, [FullHeads(2), LocalHeads(2, 4)], dense_below=16)
    np.testing.assert_allclose(outputs_of(adapted, short), outputs_of(bert, short), atol=1e-5)
    groups = adapted.transformer_layers[0]._self_attention_layer.head_groups
    assert [group.dense_below for group in groups] == [None, 16]


def test_first_tokens_can_see_everything(bert):
    inputs = make_inputs(bert)
    changed = {**inputs, "token_ids": inputs["token_ids"].copy()}
    changed["token_ids"][0, -1] += 1 if changed["token_ids"][0, -1] == 0 else -1
    for count, sees in ((None, False), (1, True)):
        adapted = rt_keras.adapt(bert, [LocalHeads(4, 2)], num_global_tokens=count)
        first = [adapted(x)["sequence_output"][0, 0] for x in (inputs, changed)]
        assert (np.abs(first[0] - first[1]).max() > 1e-6) == sees


@pytest.mark.parametrize("extension", ["repeat", "interpolate"])
def test_learned_positions_become_more(bert, extension):
    adapted = rt_keras.adapt(
        bert, [FullHeads(4)], max_sequence_length=47, position_extension=extension
    )
    table, longer = (np.asarray(x.position_embedding.position_embeddings) for x in (bert, adapted))
    assert longer.shape == (47, 16)
    if extension == "repeat":
        np.testing.assert_array_equal(longer[:24], table)
        np.testing.assert_array_equal(longer[24:], table[:23])
    else:
        np.testing.assert_allclose(longer[::2], table, atol=1e-6)
        np.testing.assert_allclose(longer[1::2], (table[:-1] + table[1:]) / 2, atol=1e-6)
    assert adapted(make_inputs(adapted, length=40))["sequence_output"].shape == (2, 40, 16)


def test_rotary_positions_are_scaled():
    llama = make_backbone("Llama")
    adapted = rt_keras.adapt(llama, [FullHeads(4)], max_sequence_length=96, trained_length=24)
    inputs = make_inputs(llama, length=4, padded=0)
    rows = adapted.transformer_layers[0]._self_attention_layer
    x = np.random.default_rng(0).normal(size=[1, 8, 1, 4]).astype("float32")
    rotary = llama.transformer_layers[0]._self_attention_layer.rotary_embedding_layer
    np.testing.assert_allclose(rows._rotated(x, 0)[:, 4], rotary(x[:, 4:5], start_index=1)[:, 0])
    loaded = type(adapted).from_config(adapted.get_config())
    for ours, theirs in zip(loaded.weights, adapted.weights):
        ours.assign(theirs)
    np.testing.assert_array_equal(outputs_of(loaded, inputs), outputs_of(adapted, inputs))
    assert np.abs(outputs_of(adapted, inputs) - outputs_of(llama, inputs)).max() > 1e-2
    with pytest.raises(ValueError, match="requires trained_length for rotary embeddings"):
        rt_keras.adapt(llama, [FullHeads(4)], max_sequence_length=96)


def test_far_keys_have_one_distance_in_longer_texts():
    llama = make_backbone("Llama")
    longer = rt_keras.adapt(llama, keys=64, max_sequence_length=96, trained_length=24)
    (heads,) = attention_layers(longer)[0].head_groups
    _, first, blocks = heads.key_sets
    assert first.rotary_distance == blocks.rotary_distance == 12
    # Positions are not scaled, and the new length is no longer too long.
    assert longer.rotary_scale == 1 and longer.trained_length == 96
    for given in (heads, keras.saving.serialize_keras_object(heads)):
        again = rt_keras.adapt(llama, [given], max_sequence_length=96, trained_length=24)
        assert again.rotary_scale == 1
    for same in ({}, {"max_sequence_length": 24, "trained_length": 24}):
        (heads,) = attention_layers(rt_keras.adapt(llama, keys=64, **same))[0].head_groups
        assert heads.key_sets[2].rotary_distance is None


def test_heads_that_are_their_own_keys_have_the_queries_alone(bert):
    adapted = rt_keras.adapt(bert, [LSHHeads(4, num_buckets=2, block_size=8)])
    attention = adapted.transformer_layers[0]._self_attention_layer
    assert attention.key_dense is None
    restored = rt_keras.restore(adapted).transformer_layers[0]._self_attention_layer
    np.testing.assert_array_equal(restored._key_dense.kernel, restored._query_dense.kernel)


@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_adapted_models_are_saved_and_loaded(family, tmp_path):
    adapted = rt_keras.adapt(make_backbone(family), SPARSE, layers=[0])
    inputs = make_inputs(adapted)
    expected = outputs_of(adapted, inputs)
    adapted.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(outputs_of(loaded, inputs), expected)
    adapted.save_to_preset(tmp_path / "preset")
    loaded = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    assert type(loaded) is type(adapted)
    np.testing.assert_array_equal(outputs_of(loaded, inputs), expected)
    # Weights have the original paths, which determine their dtypes and layouts.
    names = json.dumps([weight.path for weight in adapted.weights])
    assert "transformer_layer_0/self_attention" in names


@pytest.mark.end_to_end
def test_adapted_models_are_quantized_and_have_low_rank_updates(bert, tmp_path):
    adapted = rt_keras.adapt(bert, SPARSE)
    inputs = make_inputs(adapted)
    adapted.quantize("int8")
    expected = outputs_of(adapted, inputs)
    adapted.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    np.testing.assert_array_equal(outputs_of(loaded, inputs), expected)
    with pytest.raises(ValueError, match="is quantized. Adapt or restore a model before"):
        rt_keras.restore(loaded)
    adapted = rt_keras.adapt(bert, SPARSE)
    adapted.enable_lora(2)
    names = [weight.path for weight in adapted.trainable_weights]
    assert any("query/lora_kernel_a" in name for name in names)


def test_dtype_of_the_backbone_is_that_of_its_heads():
    arguments = {**FAMILIES["Bert"], "dtype": "mixed_bfloat16"}
    adapted = rt_keras.adapt(keras_hub.models.BertBackbone(**arguments), SPARSE)
    attention = adapted.transformer_layers[0]._self_attention_layer
    assert {x.compute_dtype for x in (attention, *attention.head_groups)} == {"bfloat16"}
    assert adapted(make_inputs(adapted))["sequence_output"].dtype == "bfloat16"


def test_functional_models_have_their_attention_replaced(tmp_path):
    inputs = keras.Input([None, 8])
    x = keras.layers.MultiHeadAttention(4, 2)(inputs, inputs, use_causal_mask=True)
    x = keras.Sequential([keras.layers.Dense(8)])(x + inputs)
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8, output_shape=8)(x, x))
    data = np.random.default_rng(0).normal(size=[2, 9, 8]).astype("float32")
    adapted = rt_keras.adapt(model, [FullHeads(4)], layers=[0])
    np.testing.assert_allclose(adapted(data), model(data), atol=1e-5)
    adapted = rt_keras.adapt(model, [LocalHeads(4, 2)], layers=[0])
    assert [isinstance(x, MultiHeadAttention) for x in adapted.layers].count(True) == 1
    assert np.abs(adapted(data) - model(data)).max() > 1e-3
    adapted.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data), adapted(data))
    np.testing.assert_allclose(rt_keras.restore(loaded)(data), model(data), atol=1e-6)


def test_functional_models_keep_what_binds_their_attention():
    options = {
        "kernel_regularizer": "l2",
        "activity_regularizer": "l2",
        "kernel_constraint": "non_neg",
        "bias_constraint": keras.constraints.MaxNorm(0.1),
    }
    inputs = keras.Input([None, 8])
    model = keras.Model(
        inputs, keras.layers.MultiHeadAttention(4, 2, name="attention", **options)(inputs, inputs)
    )
    data = np.random.default_rng(0).normal(size=[2, 9, 8]).astype("float32")
    adapted = rt_keras.adapt(model, [FullHeads(4)])
    restored = rt_keras.restore(rt_keras.adapt(model, [LocalHeads(4, 2)]))
    config = model.get_layer("attention").get_config()
    assert {name: restored.get_layer("attention").get_config()[name] for name in options} == {
        name: config[name] for name in options
    }
    trained = []
    for made in (model, adapted, restored):
        made.compile("sgd", "mse", jit_compile=False)
        loss = made.fit(data, -data, epochs=2, verbose=0).history["loss"]
        trained.append([np.float32(loss), *(x.ravel() for x in made.get_weights())])
    for expected, *others in zip(*trained, strict=True):
        for other in others:
            np.testing.assert_allclose(other, expected, rtol=1e-4, atol=1e-6)


def test_a_model_may_keep_its_length(bert):
    inputs = make_inputs(bert)
    adapted = rt_keras.adapt(bert, [FullHeads(4)], max_sequence_length=24)
    np.testing.assert_allclose(outputs_of(adapted, inputs), outputs_of(bert, inputs), atol=1e-5)
    llama = make_backbone("Llama")
    kept = rt_keras.adapt(llama, [FullHeads(4)], max_sequence_length=24, trained_length=24)
    inputs = make_inputs(llama)
    np.testing.assert_allclose(outputs_of(kept, inputs), outputs_of(llama, inputs), atol=1e-5)


def make_wrong(case, bert):
    """Calls `adapt` or `restore` with wrong arguments."""
    if case == "twice":
        return rt_keras.adapt(rt_keras.adapt(bert, [FullHeads(4)]), [FullHeads(4)])
    if case == "unknown":
        other = keras_hub.models.AlbertBackbone(20, 1, 2, 8, 8, 8, max_sequence_length=8)
        return rt_keras.adapt(other, [FullHeads(2)])
    if case == "no attention":
        return rt_keras.adapt(keras.Sequential([keras.Input([8]), keras.layers.Dense(8)]), SPARSE)
    if case == "inside a layer":
        inputs = keras.Input([None, 8])
        return rt_keras.adapt(
            keras.Model(inputs, keras_hub.layers.TransformerEncoder(8, 2)(inputs)), SPARSE
        )
    if case == "one group in a graph":
        inputs = keras.Input([None, 8])
        model = keras.Model(inputs, keras.layers.MultiHeadAttention(4, 2)(inputs, inputs))
        return rt_keras.adapt(model, LocalHeads(4, 2))
    if case == "restored":
        return rt_keras.restore(bert)
    arguments = {
        "heads": {"head_groups": [FullHeads(3)]},
        "shared": {"head_groups": [LocalHeads(2, 4), RoutingHeads(2, 2, 4, share_qk=True)]},
        "layers": {"layers": [2]},
        "one group": {"head_groups": FullHeads(4)},
        "no groups": {"head_groups": []},
        "shorter": {"max_sequence_length": 23},
        "extension": {"position_extension": "copy"},
        "trained": {"max_sequence_length": 48, "trained_length": 24},
    }
    return rt_keras.adapt(bert, **{"head_groups": SPARSE, **arguments[case]})


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("twice", "is already adapted"),
        ("unknown", "attention of AlbertBackbone cannot be replaced. Supported: Bert"),
        ("no attention", "must call keras.layers.MultiHeadAttention directly.*: Dense"),
        ("inside a layer", "not inside another layer.*TransformerEncoder"),
        ("restored", "was not made by adapt"),
        ("heads", "as many heads as the model's attention, 4. Received: 3"),
        ("shared", "all head groups or none must have share_qk=True"),
        ("layers", "from 0 to 1. Received: layers=\\[2\\]"),
        ("one group", r"head_groups must be a list of .*\[LocalHeads.*Received: .*<FullHeads"),
        ("one group in a graph", r"head_groups must be a list of .*Received: .*<LocalHeads"),
        ("no groups", r"head_groups must be a list of at least one head group.*Received: .*\[\]"),
        ("shorter", "must be at least 24, that of the model. Received: 23"),
        ("extension", "position_extension must be one of .*'copy'"),
        ("trained", "trained_length is for rotary embeddings"),
    ],
)
def test_what_cannot_be_adapted_is_refused(case, message, bert):
    with pytest.raises(ValueError, match=message):
        make_wrong(case, bert)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_bias": True}, "attention_bias is not supported: biases on queries"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported, only 1"),
    ],
)
def test_what_smollm3_does_not_use_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        rt_keras.adapt(make_backbone("SmolLM3", **options), SPARSE)


def test_layers_of_smollm3_without_rotary_embeddings_have_no_distances():
    original = make_backbone("SmolLM3")
    lengths = {"max_sequence_length": 96, "trained_length": 24}
    longer = rt_keras.adapt(original, keys=64, **lengths)
    sets = [layer.head_groups[0].key_sets for layer in attention_layers(longer)]
    assert [x[2].rotary_distance for x in sets] == [12, 12]
    # All keys are in the window.
    inputs = make_inputs(original)
    np.testing.assert_allclose(outputs_of(longer, inputs), outputs_of(original, inputs), atol=1e-5)


def test_the_dtype_of_smollm3_stays():
    """KerasHub cannot create it from a configuration with a dtype."""
    keras.config.set_dtype_policy("float64")
    try:
        original = make_backbone("SmolLM3")
    finally:
        keras.config.set_dtype_policy("float32")
    adapted = rt_keras.adapt(original, SPARSE, layers=[])
    assert {weight.dtype for weight in adapted.trainable_weights} == {"float64"}
    assert keras.config.dtype_policy().name == "float32"


def test_masks_of_pairs_are_refused_by_sparse_heads():
    gpt = make_backbone("GPT2")
    adapted = rt_keras.adapt(gpt, [LocalRoutingHeads(4, 4, 2, 4)])
    x = np.zeros([1, 8, 16], "float32")
    with pytest.raises(ValueError, match="takes no decoder_attention_mask"):
        adapted.transformer_layers[0](x, decoder_attention_mask=np.ones([1, 8, 8]))
