import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.keras_internals import part_of
from rt_keras.layers import (
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    LSHHeads,
    MultiHeadAttention,
    RoutingHeads,
    TransformerBlock,
)
from rt_keras.models.adapted.architectures import attention_layers
from rt_keras.models.adapted.graphs import ATTENTION
from tests.models.adapted.checks import FAMILIES, make_backbone, make_inputs, outputs_of

SPARSE = [LocalHeads(2, 4), RoutingHeads(2, 2, 4, use_query_key_norm=False)]


@pytest.fixture(scope="module")
def bert():
    return make_backbone("Bert")


WINDOWS = {"Mistral": {"sliding_window": 5}, "Qwen3": {"sliding_window_size": 5}}
WITHOUT = {"Mistral": {"sliding_window": None, "head_dim": 8}}


@pytest.mark.parametrize(
    ("family", "options"),
    [*((family, WITHOUT.get(family, {})) for family in FAMILIES), *WINDOWS.items()],
)
def test_full_heads_give_what_the_original_gives_and_weights_come_back(family, options):
    original = make_backbone(family, **options)
    inputs = make_inputs(original)
    expected = outputs_of(original, inputs)
    window = options == WINDOWS.get(family)
    heads = [LocalHeads(4, 5, sliding_window=5) if window else FullHeads(4)]
    adapted = rt_keras.adapt(original, heads, layers="global" if family == "Gemma3" else None)
    np.testing.assert_allclose(outputs_of(adapted, inputs), expected, atol=1e-5)
    # Unchanged blocks have the original heads, and their windows.
    other = rt_keras.adapt(original, SPARSE, layers=[])
    np.testing.assert_allclose(outputs_of(other, inputs), expected, atol=1e-5)
    restored = rt_keras.restore(adapted)
    assert type(restored) is type(original)
    for ours, theirs in zip(restored.weights, original.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_only_chosen_layers_change(bert):
    inputs = make_inputs(bert)
    adapted = rt_keras.adapt(bert, SPARSE, layers=[1])
    kinds = [
        [group.kind for group in block._self_attention_layer.head_groups]
        for block in adapted.transformer_layers
    ]
    assert kinds == [["Everything"], ["Window", "Cluster of assignment 'nearest'"]]
    # Weights have the original paths, which determine their dtypes and layouts.
    paths = [weight.path for weight in adapted.weights]
    assert any("transformer_layer_1/self_attention" in path for path in paths)
    assert np.abs(outputs_of(adapted, inputs) - outputs_of(bert, inputs)).max() > 1e-2


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
    np.testing.assert_allclose(
        rows._rotated(x, 0, "query")[:, 4], rotary(x[:, 4:5], start_index=1)[:, 0]
    )
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


BLOCK = {"intermediate_dim": 6, "num_heads": 4, "name": "own", "dtype": "float64"}
BLOCK |= {"normalize_first": True, "activation": "gelu", "layer_norm_epsilon": 0.1, "dropout": 0.5}
# Calls of layers that have other arguments than Keras's attention, with a padding mask.
CALLS = {
    "attention": lambda x, mask: keras.layers.MultiHeadAttention(4, 2, name="own")(
        x, x, attention_mask=mask[:, None], use_causal_mask=True
    ),
    "grouped": lambda x, mask: keras.layers.GroupQueryAttention(
        3, 4, 2, dropout=0.5, use_bias=False, activity_regularizer="l2", name="own"
    )(x, x, attention_mask=mask[:, None], use_causal_mask=True),
    "encoder": lambda x, mask: keras_hub.layers.TransformerEncoder(**BLOCK)(x, padding_mask=mask),
    "decoder": lambda x, mask: keras_hub.layers.TransformerDecoder(**BLOCK)(
        x, x + 1, decoder_padding_mask=mask, encoder_padding_mask=mask
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_layers_have_their_attention_replaced(call, tmp_path):
    inputs = keras.Input([None, 8]), keras.Input([None], dtype="bool")
    model = keras.Model(inputs, call(*inputs))
    rng, mask = np.random.default_rng(0), np.arange(12) < [[12], [7]]
    data = rng.normal(size=[2, 12, 8]).astype("float32"), mask
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    model.weights[0].trainable = False
    few, full = (rt_keras.adapt(model, [LocalHeads(4, size)]) for size in (1, 12))
    few, all_keys = (np.abs(made(data) - model(data))[mask].max() for made in (few, full))
    assert all_keys < 1e-5 < 1e-2 < few
    np.testing.assert_allclose(sum(full.losses), sum(model.losses), rtol=1e-6)
    full.compile("sgd", "mse", run_eagerly=True)
    full.train_on_batch(data, full(data) + 1)
    full.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data), full(data))
    restored = rt_keras.restore(full)
    np.testing.assert_allclose(restored(data)[mask], full(data)[mask], atol=1e-5)
    assert restored.get_layer("own").get_config() == model.get_layer("own").get_config()
    assert [x.trainable for x in restored.weights] == [x.trainable for x in model.weights]


def bind(layer, dense):
    """Sets what constructors do not know: freezes a layer except one dense layer inside."""
    layer.trainable, dense.trainable = False, True
    dense.kernel.regularizer = keras.regularizers.L2(0.1)
    dense.kernel.constraint = keras.constraints.MaxNorm(0.1)
    dense.dtype_policy = "mixed_bfloat16"


def bound(model):
    """Returns what was set on weights, with `keras.layers.MultiHeadAttention`'s constraints."""
    weights = [(x.trainable, x.regularizer, x.constraint) for x in model.weights]
    return [(*x, getattr(constraint, "constraint", constraint)) for *x, constraint in weights]


@pytest.mark.parametrize("family", ["Bert", "Llama", "SmolLM3"])
def test_what_was_set_on_layers_after_their_construction_stays(family):
    original = make_backbone(family)
    original.name = "own"
    attention = attention_layers(original)[0]
    dense = part_of(attention, "o_proj" if family == "SmolLM3" else "output_dense")
    bind(original.transformer_layers[0], dense)
    original.token_embedding.enable_lora(2)
    adapted = rt_keras.adapt(original, SPARSE)
    restored = rt_keras.restore(adapted)
    assert bound(restored) == bound(original)
    for made in (adapted, restored):
        assert made.name == "own" and made.token_embedding.lora_rank == 2
        assert len(made.trainable_weights) == len(original.trainable_weights)
        np.testing.assert_allclose(sum(made.losses), sum(original.losses), rtol=1e-6)
    assert attention_layers(adapted)[0].output_dense.compute_dtype == "bfloat16"


def test_frozen_layers_of_tasks_are_not_trained(tmp_path):
    original = keras_hub.models.BertTextClassifier(make_backbone("Bert"), num_classes=2)
    original.backbone.trainable = False
    adapted = rt_keras.adapt(original, [FullHeads(4)])
    adapted.save(tmp_path / "frozen.keras")
    loaded = keras.saving.load_model(tmp_path / "frozen.keras")
    for made in (adapted, rt_keras.restore(adapted), loaded, keras.models.clone_model(adapted)):
        assert [x.path for x in made.trainable_weights] == ["logits/kernel", "logits/bias"]
    original.trainable = False
    assert not rt_keras.adapt(original, [FullHeads(4)]).trainable_weights


class Named(keras.Model):
    """A functional model of a class of its own."""


def test_functional_models_keep_what_was_set_on_their_layers():
    options = {"activity_regularizer": "l2", "bias_constraint": keras.constraints.MaxNorm(0.1)}
    texts, features = keras.layers.TextVectorization(), keras.layers.Normalization()
    texts.adapt(["the cat sat", "on"])
    features.adapt(tf.range(8.0)[None, None])
    inputs = keras.Input([], dtype="string", name="texts"), keras.Input([3, 8], optional=True)
    x = features(keras.layers.Embedding(9, 8)(texts(inputs[0])))
    attention = keras.layers.MultiHeadAttention(4, 2, name="attention", **options)
    inner = keras.Sequential([keras.layers.Dense(8), keras.layers.LayerNormalization()])
    model = Named(inputs, inner(attention(x, x)), name="own")
    bind(attention, attention.output_dense)
    inner.layers[1].trainable = False
    adapted = rt_keras.adapt(model, [FullHeads(4)])
    restored = rt_keras.restore(adapted)
    assert bound(restored) == bound(model)
    found, config = (x.get_layer("attention").get_config() for x in (adapted, model))
    assert {name: found[name] for name in options} == {name: config[name] for name in options}
    data = tf.constant(["the cat sat", "on"]), None
    for made in (adapted, restored):
        assert type(made) is Named and made.layers[0].name == "texts"
        np.testing.assert_allclose(made(data), model(data), atol=1e-2)
        losses = [sum(float(x) for x in one.losses) for one in (made, model)]
        np.testing.assert_allclose(*losses, rtol=1e-3)


def graph_of(layer, **options):
    """Returns a functional model of an attention layer, or of another layer."""
    inputs = keras.Input([None, 8])
    attention = isinstance(layer, (*ATTENTION, MultiHeadAttention))
    return keras.Model(inputs, layer(*[inputs] * (2 if attention else 1), **options))


class Own(keras.Model):
    """A functional model whose constructor takes no graph."""

    def __init__(self):
        inputs = keras.Input([None, 8])
        super().__init__(inputs, keras.layers.MultiHeadAttention(4, 2)(inputs, inputs), name="own")


def own(**options):
    return graph_of(MultiHeadAttention([FullHeads(4)], key_dim=4, **options))


def with_lora(model):
    model.enable_lora(2)
    return model


def decoder():
    return keras_hub.layers.TransformerDecoder(8, 4, name="x")


def adapted_bert():
    return rt_keras.adapt(make_backbone("Bert"), [FullHeads(4)])


SHARED = [LocalHeads(2, 4), RoutingHeads(2, 2, 4, share_qk=True)]
ALBERT = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2, "embedding_dim": 8}
ALBERT |= {"hidden_dim": 8, "intermediate_dim": 8, "max_sequence_length": 8}
# Functions that make a model, and parts of the message.
WRONG = {
    "is already adapted": adapted_bert,
    "attention of AlbertBackbone cannot be replaced. Supported: Bert": (
        lambda: keras_hub.models.AlbertBackbone(**ALBERT)
    ),
    "must call .* MultiHeadAttention, Group.*TransformerDecoder directly.*: Dense": (
        lambda: graph_of(keras.layers.Dense(8))
    ),
    "x would lose the methods of CachedMultiHeadAttention": (
        lambda: graph_of(keras_hub.layers.CachedMultiHeadAttention(4, 4, name="x"))
    ),
    "x with other heads takes use_causal_mask=True only": (
        lambda: graph_of(decoder(), use_causal_mask=False)
    ),
    "x has use_gate=True, which MultiHeadAttention does not support": (
        lambda: graph_of(keras.layers.GroupQueryAttention(4, 4, 4, use_gate=True, name="x"))
    ),
    "self_attention_layer has LoRA, whose weights have other axes": (
        lambda: with_lora(make_backbone("Bert"))
    ),
    "A copy of own would lose the methods of Own": Own,
    "attention_bias is not supported: biases on queries": (
        lambda: make_backbone("SmolLM3", attention_bias=True)
    ),
    "partial_rotary_factor=0.5 is not supported, only 1": (
        lambda: make_backbone("SmolLM3", partial_rotary_factor=0.5)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_adapted_is_refused(message):
    with pytest.raises(ValueError, match=message):
        rt_keras.adapt(WRONG[message](), SPARSE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_groups": LocalHeads(4, 2)}, r"list of .*\[LocalHeads.*: .*<"),
        ({"head_groups": [FullHeads(3)]}, "as many heads as .*, 4. Received: 3"),
        ({"head_groups": SHARED}, "all head groups or none must have share_qk=True"),
        ({"layers": [2]}, r"from 0 to 1. Received: layers=\[2\]"),
        ({"max_sequence_length": 23}, "at least 24, that of the model. Received: .*=23"),
        ({"dtype": "bfloat16"}, "dtype can only be set for folders and presets"),
    ],
)
def test_wrong_arguments_are_refused(bert, options, message):
    with pytest.raises(ValueError, match=message):
        rt_keras.adapt(bert, **{"head_groups": SPARSE, **options})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: make_backbone("Bert"), "was not made by adapt"),
        (lambda: graph_of(TransformerBlock([FullHeads(4)], 8)), "was not made by adapt"),
        (lambda: with_lora(adapted_bert()), "has LoRA.* Save and load the model"),
        (lambda: own(rotary_embedding=keras_hub.layers.RotaryEmbedding()), "it has rotary_emb"),
        (lambda: own(use_head_dense=True), "not made by adapt..: it has use_head_dense=True"),
        (lambda: own(num_key_value_heads=2, value_dim=2), "it has num_key_value_heads=2"),
    ],
)
def test_what_was_not_adapted_is_not_restored(model, message):
    with pytest.raises(ValueError, match=message):
        rt_keras.restore(model())


def test_layers_of_smollm3_without_rotary_embeddings_have_no_distances():
    original = make_backbone("SmolLM3")
    lengths = {"max_sequence_length": 96, "trained_length": 24}
    longer = rt_keras.adapt(original, keys=64, **lengths)
    sets = [layer.head_groups[0].key_sets for layer in attention_layers(longer)]
    assert [x[2].rotary_distance for x in sets] == [12, 12]
    # All keys are in the window.
    inputs = make_inputs(original)
    np.testing.assert_allclose(outputs_of(longer, inputs), outputs_of(original, inputs), atol=1e-5)


def test_masks_of_pairs_are_refused_by_sparse_heads():
    gpt = make_backbone("GPT2")
    adapted = rt_keras.adapt(gpt, [LocalRoutingHeads(4, 4, 2, 4)])
    x = np.zeros([1, 8, 16], "float32")
    with pytest.raises(ValueError, match="takes no decoder_attention_mask"):
        adapted.transformer_layers[0](x, decoder_attention_mask=np.ones([1, 8, 8]))


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
