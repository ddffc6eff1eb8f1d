import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from tests.models.adapted.checks import make_backbone, make_inputs

LENGTH, SHORTEST, LONGEST = 20, 5, 9
SPARSE = [LocalHeads(2, 4), RoutingHeads(2, 2, 4, use_query_key_norm=False)]
# Families of backbones with a task that generates.
TASKS = ["GPT2", "OPT", "Llama", "Llama3", "Mistral", "Qwen3", "SmolLM3", "Gemma3", "Bart"]


def make_task(family):
    kind = "Seq2SeqLM" if family == "Bart" else "CausalLM"
    cls = getattr(keras_hub.models, f"{family}{kind}")
    task = cls(backbone=make_backbone(family), preprocessor=None)
    task.compile(sampler="greedy", jit_compile=False)
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


def check_recomputed(task, inputs, prefix, tokens):
    """Asserts that each new token is the likeliest one in a pass over the whole sequence."""
    whole = {f"{prefix}token_ids": tokens, f"{prefix}padding_mask": np.ones_like(tokens)}
    logits = task({**inputs, **whole})
    likeliest = np.asarray(logits).argmax(-1)
    for row, length in enumerate((LONGEST, SHORTEST)):
        np.testing.assert_array_equal(tokens[row, length:], likeliest[row, length - 1 : -1])
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("family", TASKS)
def test_full_heads_generate_what_the_original_does_and_the_parallel_pass_finds(family):
    original = make_task(family)
    windows = {"Mistral": [], "Gemma3": "global"}
    adapted = rt_keras.adapt(original, [FullHeads(4)], layers=windows.get(family))
    adapted.compile(sampler="greedy", jit_compile=False)
    inputs, prefix = make_prompts(original)
    tokens = generate(adapted, inputs, prefix)
    np.testing.assert_array_equal(tokens, generate(original, inputs, prefix))
    logits = check_recomputed(adapted, inputs, prefix, tokens)
    if hasattr(adapted, "token_losses"):
        hidden = adapted.hidden_states({"token_ids": tokens, "padding_mask": tokens >= 0})
        losses = adapted.token_losses(hidden, tf.constant(tokens), chunk_size=4)[0]
        expected = keras.losses.sparse_categorical_crossentropy(tokens, logits, from_logits=True)
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("Mistral", keras_hub.samplers.BeamSampler(num_beams=2)),
        ("GPT2", keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.4)),
    ],
)
def test_searches_find_what_the_original_finds(family, sampler):
    original = make_task(family)
    adapted = rt_keras.adapt(original, [FullHeads(4)], layers=[])
    for task in (adapted, original):
        task.compile(sampler=sampler, jit_compile=False)
    inputs, prefix = make_prompts(original)
    # Each row separately: with a shorter one, the original's scores include tokens of the prompt.
    alone = [
        generate(original, {name: x[row : row + 1] for name, x in inputs.items()}, prefix)
        for row in range(2)
    ]
    np.testing.assert_array_equal(generate(adapted, inputs, prefix), np.concatenate(alone))


def test_prompts_of_a_decoder_may_start_with_padding_and_are_checked():
    task = rt_keras.adapt(make_task("Bart"), [FullHeads(4)])
    task.compile(sampler="greedy", run_eagerly=True)
    inputs = {name: x[:1, :8] for name, x in make_prompts(task)[0].items()}
    padded = {
        name: np.pad(x, [[0, 0], [2 * name.startswith("decoder"), 0]]) for name, x in inputs.items()
    }
    expected, found = (
        task.generate(x, stop_token_ids=None)["decoder_token_ids"] for x in (inputs, padded)
    )
    np.testing.assert_array_equal(found, np.pad(expected, [[0, 0], [2, 0]]))
    with pytest.raises(ValueError, match="row 0 is an empty prompt"):
        task.generate({**inputs, "decoder_padding_mask": np.zeros([1, 8])}, stop_token_ids=None)
    with pytest.raises(ValueError, match="decoder_token_ids must be from 0 to 29. Received: 30"):
        task.generate({**inputs, "decoder_token_ids": np.full([1, 8], 30)}, stop_token_ids=None)


def test_heads_without_a_cache_do_not_generate():
    task = rt_keras.adapt(make_task("GPT2"), [RoutingHeads(4, 2, 4, assignment="balanced")])
    inputs, prefix = make_prompts(task)
    with pytest.raises(ValueError, match="needs heads that decode with a cache"):
        generate(task, inputs, prefix)
    with pytest.raises(ValueError, match="takes no self_attention_cache of the original model"):
        task.backbone.transformer_layers[0](
            np.zeros([1, 1, 16], "float32"),
            self_attention_cache=np.zeros([1, 2, 4, 4, 4], "float32"),
            self_attention_cache_update_index=0,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("TextClassifier", {"num_classes": 3}), ("MaskedLM", {})]
)
def test_new_tasks_of_encoders_train_and_are_saved_and_come_back(name, options, tmp_path):
    from rt_keras.callbacks import CentroidEMA

    original = getattr(keras_hub.models, f"Roberta{name}")(make_backbone("Roberta"), **options)
    adapted = rt_keras.adapt(original, SPARSE, layers=[1], num_global_tokens=1)
    assert type(adapted).__name__ == f"AdaptedRoberta{name}"
    inputs = make_inputs(original)
    np.testing.assert_allclose(rt_keras.restore(adapted)(inputs), original(inputs), atol=1e-6)
    labels = np.array([2, 1]) if options else inputs["token_ids"]
    adapted.compile(keras.optimizers.Adam(1e-2), adapted.loss, run_eagerly=True)
    adapted.fit(inputs, labels, verbose=0, callbacks=[CentroidEMA()])
    assert np.abs(adapted(inputs) - original(inputs)).max() > 1e-3
    adapted.save_to_preset(tmp_path)
    loaded = getattr(keras_hub.models, name).from_preset(str(tmp_path))
    assert type(loaded) is type(adapted)
    np.testing.assert_array_equal(loaded(inputs), adapted(inputs))
    restored = rt_keras.restore(adapted)
    assert type(restored) is type(original)


def test_a_task_around_an_adapted_backbone_comes_back():
    backbone = rt_keras.adapt(make_backbone("Bert"), [FullHeads(4)])
    classifier = keras_hub.models.BertTextClassifier(backbone, num_classes=3)
    restored, inputs = rt_keras.restore(classifier), make_inputs(classifier)
    assert type(restored) is type(classifier)
    assert type(restored.backbone) is keras_hub.models.BertBackbone
    np.testing.assert_allclose(restored(inputs), classifier(inputs), atol=1e-6)


@pytest.mark.slow
def test_a_graph_generates_what_generate_does_with_learned_positions(monkeypatch):
    monkeypatch.setattr("rt_keras.models.adapted.graph_generation.PROMPT_CHUNK", 4)
    task = rt_keras.adapt(make_task("GPT2"), [FullHeads(4)])
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
