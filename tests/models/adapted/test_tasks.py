import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import (
    ClusteredHeads,
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    RoutingHeads,
)
from tests.models.adapted.checks import make_backbone, make_inputs

LENGTH, SHORTEST, LONGEST = 20, 5, 9
SPARSE = [LocalHeads(2, 4), RoutingHeads(2, 2, 4, use_query_key_norm=False)]
TASKS = {
    "GPT2": "GPT2CausalLM",
    "OPT": "OPTCausalLM",
    "Llama": "LlamaCausalLM",
    "Llama3": "Llama3CausalLM",
    "Mistral": "MistralCausalLM",
    "Qwen3": "Qwen3CausalLM",
    "SmolLM3": "SmolLM3CausalLM",
    "Gemma3": "Gemma3CausalLM",
    "Bart": "BartSeq2SeqLM",
}


def make_task(family):
    cls = getattr(keras_hub.models, TASKS[family])
    task = cls(backbone=make_backbone(family), preprocessor=None)
    task.compile(sampler="greedy")
    return task


def make_prompts(task):
    """Returns two prompts of different lengths, for the decoder if there is an encoder."""
    inputs = make_inputs(task, length=LENGTH)
    prefix = "decoder_" if "decoder_token_ids" in inputs else ""
    inputs[f"{prefix}padding_mask"][:] = 0
    for row, length in enumerate((LONGEST, SHORTEST)):
        inputs[f"{prefix}padding_mask"][row, :length] = 1
        inputs[f"{prefix}token_ids"][row, length:] = 0
    return inputs, prefix


def generate(task, inputs, prefix):
    # Gemma's own generate() fails on token ids, because it returns images.
    tensors = {name: keras.ops.convert_to_tensor(x) for name, x in inputs.items()}
    mask = f"{prefix}padding_mask"
    tensors[mask] = keras.ops.cast(tensors[mask], "bool")
    found = task.make_generate_function()(tensors, stop_token_ids=None)
    return np.asarray(found[f"{prefix}token_ids"])


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("family", "groups"),
    [
        ("Llama", SPARSE),
        ("Llama", [LocalHeads(4, 4, adaptive_span=True)]),
        pytest.param("GPT2", [LocalRoutingHeads(4, 4, 2, 4)], marks=pytest.mark.end_to_end),
        pytest.param("Bart", SPARSE, marks=pytest.mark.end_to_end),
    ],
)
def test_cached_generation_is_that_of_the_parallel_pass(family, groups):
    task = rt_keras.adapt(make_task(family), groups)
    task.compile(sampler="greedy", jit_compile=False)
    inputs, prefix = make_prompts(task)
    tokens = generate(task, inputs, prefix)
    whole = {f"{prefix}token_ids": tokens, f"{prefix}padding_mask": np.ones_like(tokens)}
    likeliest = np.asarray(task({**inputs, **whole})).argmax(-1)
    for row, length in enumerate((LONGEST, SHORTEST)):
        np.testing.assert_array_equal(tokens[row, length:], likeliest[row, length - 1 : -1])


@pytest.mark.end_to_end
@pytest.mark.parametrize("family", TASKS)
def test_full_heads_generate_what_the_original_does(family):
    original = make_task(family)
    windows = {"Mistral": [], "Gemma3": "global"}
    adapted = rt_keras.adapt(original, [FullHeads(4)], layers=windows.get(family))
    adapted.compile(sampler="greedy")
    inputs, prefix = make_prompts(original)
    np.testing.assert_array_equal(
        generate(adapted, inputs, prefix), generate(original, inputs, prefix)
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("family", ["GPT2", "Llama3", "Mistral"])
@pytest.mark.parametrize(
    "sampler",
    [
        keras_hub.samplers.BeamSampler(num_beams=2),
        keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.4),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_searches_find_what_the_original_finds(family, sampler):
    original = make_task(family)
    adapted = rt_keras.adapt(original, [FullHeads(4)], layers=[])
    adapted.compile(sampler=sampler)
    original.compile(sampler=sampler)
    inputs, prefix = make_prompts(original)
    # Each row separately: with a shorter one, the original's scores include tokens of the prompt.
    alone = [
        generate(original, {name: x[row : row + 1] for name, x in inputs.items()}, prefix)
        for row in range(2)
    ]
    np.testing.assert_array_equal(generate(adapted, inputs, prefix), np.concatenate(alone))


@pytest.mark.end_to_end
def test_contrastive_search_compares_no_states_to_the_left_of_a_row():
    task = rt_keras.adapt(make_task("GPT2"), [FullHeads(4)])
    sampler = keras_hub.samplers.ContrastiveSampler(k=5, alpha=0.8)
    task.compile(sampler=sampler, jit_compile=False)
    inputs, prefix = make_prompts(task)
    alone = [
        generate(task, {name: x[row : row + 1] for name, x in inputs.items()}, prefix)
        for row in range(2)
    ]
    np.testing.assert_array_equal(generate(task, inputs, prefix), np.concatenate(alone))


def test_heads_without_a_cache_do_not_generate():
    task = rt_keras.adapt(make_task("GPT2"), [RoutingHeads(4, 2, 4, assignment="balanced")])
    inputs, prefix = make_prompts(task)
    with pytest.raises(ValueError, match="needs heads that decode with a cache"):
        generate(task, inputs, prefix)
    with pytest.raises(ValueError, match="takes no cache of the original model"):
        task.backbone.transformer_layers[0](
            np.zeros([1, 1, 16], "float32"),
            self_attention_cache=np.zeros([1, 2, 4, 4, 4], "float32"),
            self_attention_cache_update_index=0,
        )


def test_caches_do_not_grow_with_the_sequence():
    task = rt_keras.adapt(make_task("GPT2"), SPARSE)
    sizes = []
    for length in (12, 24):
        cache = task.new_cache(1, length)
        sizes.append(sum(x.numpy().nbytes for x in keras.tree.flatten(cache)))
    assert sizes[0] == sizes[1]


def test_classifiers_keep_their_head_and_come_back(tmp_path):
    original = keras_hub.models.BertTextClassifier(make_backbone("Bert"), num_classes=3)
    adapted = rt_keras.adapt(original, [ClusteredHeads(4, num_clusters=4, top_k=4)])
    assert type(adapted).__name__ == "AdaptedBertTextClassifier"
    inputs = make_inputs(original)
    np.testing.assert_allclose(rt_keras.restore(adapted)(inputs), original(inputs), atol=1e-6)
    adapted.save_to_preset(tmp_path)
    loaded = keras_hub.models.TextClassifier.from_preset(str(tmp_path))
    assert type(loaded) is type(adapted)
    np.testing.assert_array_equal(loaded(inputs), adapted(inputs))


def test_preprocessors_pack_longer_sequences():
    tokenizer = keras_hub.models.BertTokenizer(
        vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    )
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12)
    original = keras_hub.models.BertTextClassifier(
        make_backbone("Bert"), num_classes=2, preprocessor=preprocessor
    )
    adapted = rt_keras.adapt(original, SPARSE, max_sequence_length=40)
    lengths = [x.preprocessor(["a b a"])["token_ids"].shape[1] for x in (adapted, original)]
    assert lengths == [40, 12]


def test_parts_of_a_batch_make_the_step_of_the_whole():
    found = []
    for parts in (1, 2):
        task = rt_keras.adapt(make_task("Llama"), [LocalHeads(4, 4)])
        inputs, _ = make_prompts(task)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = {"gradient_accumulation_steps": parts, "run_eagerly": True}
        task.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=[], **options)
        task.train_on_batch(inputs, inputs["token_ids"])
        found.append([np.asarray(weight) for weight in task.trainable_weights])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.end_to_end
def test_adapted_models_train_and_are_exported(tmp_path):
    from rt_keras.callbacks import CentroidEMA

    task = rt_keras.adapt(make_task("Llama"), SPARSE)
    inputs, _ = make_prompts(task)
    inputs["padding_mask"][:] = 1
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, weighted_metrics=[])
    history = task.fit(inputs, inputs["token_ids"], epochs=20, verbose=0, callbacks=[CentroidEMA()])
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    task.export(tmp_path, verbose=False)
    served = keras.layers.TFSMLayer(str(tmp_path), call_endpoint="serve")(inputs)
    np.testing.assert_allclose(served, task(inputs), atol=1e-5)


@pytest.mark.end_to_end
@pytest.mark.parametrize("family", ["GPT2", "Llama3", "Gemma3"])
def test_a_graph_generates_what_generate_does(family, monkeypatch):
    monkeypatch.setattr("rt_keras.models.adapted.graph_generation.PROMPT_CHUNK", 4)
    windows = {"Gemma3": "global"}
    task = rt_keras.adapt(make_task(family), [FullHeads(4)], layers=windows.get(family))
    task.compile(sampler="greedy", jit_compile=False)
    inputs, prefix = make_prompts(task)
    expected = generate(task, inputs, prefix)
    found = tf.function(task.generate_step)(inputs)["token_ids"]
    np.testing.assert_array_equal(found, expected)


def test_a_graph_has_no_searches():
    task = rt_keras.adapt(make_task("GPT2"), [FullHeads(4)])
    task.compile(sampler=keras_hub.samplers.BeamSampler(num_beams=2))
    with pytest.raises(ValueError, match="chooses one token at a time.*Received: BeamSampler"):
        task.generate_step(make_prompts(task)[0])


@pytest.mark.end_to_end
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("heads", [[FullHeads(4)], SPARSE], ids=["full", "sparse"])
def test_a_row_that_has_ended_changes_no_other(heads, jit_compile):
    task = rt_keras.adapt(make_task("Llama"), heads)
    task.compile(sampler="greedy", jit_compile=jit_compile)
    inputs, _ = make_prompts(task)
    # The long row finishes long before the short one.
    inputs["padding_mask"][0] = np.arange(LENGTH) < LENGTH - 1
    together = task.generate(inputs, stop_token_ids=None)["token_ids"]
    for row in range(2):
        alone = {name: x[row : row + 1] for name, x in inputs.items()}
        found = task.generate(alone, stop_token_ids=None)["token_ids"]
        np.testing.assert_array_equal(together[row : row + 1], found)
