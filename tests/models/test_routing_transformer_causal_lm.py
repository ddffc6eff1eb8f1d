import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.data import ByteTokenizer
from rt_keras.models import RoutingTransformerCausalLM
from rt_keras.models import RoutingTransformerCausalLMPreprocessor as Preprocessor
from tests.models import checks


def make_model(preprocessor=None, **changes):
    return RoutingTransformerCausalLM(checks.make_backbone(**changes), preprocessor)


@pytest.fixture(scope="module")
def model():
    """Works on token ids."""
    return make_model()


@pytest.fixture(scope="module")
def text_model():
    """Works on strings."""
    preprocessor = Preprocessor(ByteTokenizer(), sequence_length=12)
    model = make_model(preprocessor, vocabulary_size=258, num_layers=1)
    model.compile(sampler="greedy", jit_compile=False)
    return model


def test_logits_are_those_of_the_tied_embedding(model):
    inputs = checks.inputs(checks.random_tokens(2, 9), lengths=[9, 5])
    embeddings = np.asarray(model.backbone.token_embedding.embeddings)
    expected = np.asarray(model.backbone(inputs)) @ embeddings.T
    logits = model(inputs)
    assert logits.shape == (2, 9, checks.VOCABULARY)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


# What the tokens of later positions change.


NEAREST = [
    {},
    {"num_probes": 2},
    {"share_qk": True},
    {"share_qk": True, "num_probes": 2},
]


@pytest.mark.parametrize("routing", NEAREST, ids=str)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_no_output_depends_on_later_tokens(routing, dtype, tolerance):
    changes = {"head_groups": checks.groups(**routing), "dtype": dtype}
    assert checks.leak(make_model(**changes)) <= tolerance


def test_nor_with_all_options():
    changes = {"shift_tokens": True, "normalize_first": False, "max_sequence_length": 24}
    assert checks.leak(make_model(**changes, dtype="float64")) <= 1e-12


@pytest.mark.parametrize("share_qk", [False, True])
def test_balanced_routing_does_depend_on_later_tokens(share_qk):
    groups = checks.groups(assignment="balanced", share_qk=share_qk)
    assert checks.leak(make_model(head_groups=groups, dtype="float64")) > 1e-2


# Training.


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_training_lowers_the_loss(jit_compile):
    model = make_model(num_layers=1)
    model.compile(keras.optimizers.Adam(2e-2), jit_compile=jit_compile)
    tokens = np.tile(np.arange(1, 6, dtype="int32"), [4, 4])
    data = checks.inputs(tokens[:, :-1]), tokens[:, 1:]
    before = model.evaluate(*data, verbose=0)[0]
    epochs = model.fit(*data, epochs=20, verbose=0, callbacks=[CentroidEMA()]).history
    assert model.evaluate(*data, verbose=0)[0] < 0.3 * before
    assert "routing_0_entropy" in epochs


def test_fit_takes_strings(text_model):
    model = text_model.from_config(text_model.get_config())
    model.compile("adam", jit_compile=False)
    history = model.fit(
        ["abcabc", "", "a longer text than fits"],
        batch_size=3,
        epochs=2,
        verbose=0,
        callbacks=[CentroidEMA()],
    ).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.filterwarnings("ignore:.*nothing moves its centroids")
@pytest.mark.parametrize("lengths", [[9, 0, 4], [0, 0, 0]], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_groups": checks.groups(share_qk=True, num_probes=2)},
        {"head_groups": checks.groups(assignment="balanced"), "normalize_first": False},
    ],
)
def test_rows_of_padding_are_finite(changes, lengths):
    model = make_model(**changes)
    inputs = checks.inputs(checks.random_tokens(3, 9), lengths)
    weights = inputs["padding_mask"].astype("float32")
    with tf.GradientTape() as tape:
        logits = model(inputs, training=True)
        loss = model.compute_loss(inputs, inputs["token_ids"], logits, weights)
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for tensor in (logits, loss, *gradients):
        assert np.all(np.isfinite(tf.convert_to_tensor(tensor)))


def test_mixed_bfloat16_trains():
    model = make_model(dtype="mixed_bfloat16", num_layers=1)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    tokens = checks.random_tokens(2, 9)
    assert model(checks.inputs(tokens)).dtype == "float32"
    history = model.fit(
        checks.inputs(tokens), tokens, epochs=5, verbose=0, callbacks=[CentroidEMA()]
    ).history
    assert history["loss"][4] < history["loss"][0]
    assert {str(x.dtype) for x in model.trainable_variables} == {"float32"}


# Files.


def test_saved_and_loaded(model, tmp_path):
    inputs = checks.inputs(checks.random_tokens(2, 9), lengths=[9, 4])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is RoutingTransformerCausalLM
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_preset(text_model, tmp_path):
    text_model.save_to_preset(str(tmp_path))
    inputs = text_model.preprocessor(["some text", ""])[0]
    for cls in (RoutingTransformerCausalLM, keras_hub.models.CausalLM):
        loaded = cls.from_preset(str(tmp_path))
        assert type(loaded) is RoutingTransformerCausalLM
        np.testing.assert_array_equal(loaded(inputs), text_model(inputs))
    loaded.compile(sampler="greedy", jit_compile=False)
    prompts = ["some", ""]
    assert loaded.generate(prompts) == text_model.generate(prompts)


def test_preset_of_a_mixed_policy(tmp_path):
    model = make_model(dtype="mixed_bfloat16")
    model.save_to_preset(str(tmp_path))
    for options, dtype in (({}, "float32"), ({"dtype": "mixed_bfloat16"}, "bfloat16")):
        loaded = RoutingTransformerCausalLM.from_preset(str(tmp_path), **options)
        assert loaded.backbone(checks.inputs(checks.random_tokens(2, 9))).dtype == dtype
        for weight, expected in zip(loaded.weights, model.weights, strict=True):
            np.testing.assert_array_equal(weight, expected)


def test_exported(model, tmp_path):
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for length in (5, 12):
        inputs = checks.inputs(checks.random_tokens(2, length), lengths=[length, 3])
        found = loaded.serve({name: tf.constant(x) for name, x in inputs.items()})
        assert checks.largest_difference(found, model(inputs)) <= 1e-5


# Generation.


def greedy(model, prompt, length):
    """The prompt and each next token, from the logits of exactly the tokens before it."""
    tokens = [int(token) for token in prompt]
    while len(tokens) < length:
        tokens.append(int(np.argmax(model(checks.inputs([tokens]))[0, -1])))
    return tokens


@pytest.fixture(scope="module")
def writer():
    """A model whose next token depends much on all that came before."""
    model = make_model()
    for weight in model.trainable_variables:
        if weight.path.endswith(("kernel", "relative_embeddings")):
            weight.assign(5 * weight)
    return model


@pytest.fixture(scope="module")
def prompts():
    """Of lengths 1, 3, 6 and all 12."""
    return checks.inputs(checks.random_tokens(4, 12, seed=3), lengths=[1, 3, 6, 12])


@pytest.fixture(scope="module")
def continuations(writer, prompts):
    lengths = prompts["padding_mask"].sum(-1)
    return [greedy(writer, row[:n], 12) for row, n in zip(prompts["token_ids"], lengths)]


@pytest.mark.parametrize("jit_compile", [True, False])
def test_greedy_continuations(writer, prompts, continuations, jit_compile):
    assert all(len(set(tokens)) > 5 for tokens in continuations)
    writer.compile(sampler="greedy", jit_compile=jit_compile)
    found = writer.generate(prompts, stop_token_ids=None)
    assert found["token_ids"].tolist() == continuations
    assert found["padding_mask"].all()
    assert not checks.routing_heads(writer.backbone)[0].member_counts.numpy().any()


def test_a_row_ends_at_its_first_new_stop_token(writer, prompts, continuations):
    # A token that the prompt has too, where it ends nothing.
    stop = continuations[1][5]
    tokens = {**prompts, "token_ids": prompts["token_ids"].copy()}
    tokens["token_ids"][3, :] = stop
    writer.compile(sampler="greedy", jit_compile=False)
    found = writer.generate(tokens, stop_token_ids=[stop, checks.VOCABULARY + 1])
    for row, n in enumerate((1, 3, 6)):
        new = continuations[row][n:]
        end = n + new.index(stop) + 1 if stop in new else 12
        assert found["token_ids"][row, :end].tolist() == continuations[row][:end]
        assert found["padding_mask"][row].tolist() == [i < end for i in range(12)]
    assert found["padding_mask"][3].all()
    assert not found["padding_mask"].all()


def test_generation_ends_when_all_rows_have(writer, prompts, continuations):
    tokens = {name: x[:1] for name, x in prompts.items()}
    stop = continuations[0][1]
    writer.compile(sampler="greedy", jit_compile=False)
    found = writer.generate(tokens, stop_token_ids=[stop])
    assert found["token_ids"][0].tolist() == continuations[0][:2] + [0] * 10


@pytest.mark.parametrize("sampler", ["TopKSampler", "TopPSampler"])
def test_seeds_of_samplers(writer, prompts, sampler):
    def sample(seed):
        sampler_class = getattr(keras_hub.samplers, sampler)
        writer.compile(sampler=sampler_class(0.9 if "P" in sampler else 5, seed=seed))
        return writer.generate(prompts, stop_token_ids=None)["token_ids"].tolist()

    first = sample(1)
    assert sample(1) == first
    assert sample(2) != first


def test_beam_search_finds_no_less_likely_text_than_greedy(writer, prompts, continuations):
    def log_probability(tokens, start):
        logits = np.asarray(writer(checks.inputs([tokens])))[0]
        scores = keras.ops.log_softmax(logits)
        return sum(float(scores[i - 1, tokens[i]]) for i in range(start, len(tokens)))

    one = {name: x[1:2] for name, x in prompts.items()}
    writer.compile(sampler=keras_hub.samplers.BeamSampler(num_beams=4), jit_compile=False)
    (found,) = writer.generate(one, stop_token_ids=None)["token_ids"].tolist()
    assert found[:3] == continuations[1][:3]
    assert log_probability(found, 3) >= log_probability(continuations[1], 3) - 1e-4


def test_text_from_an_empty_prompt_follows_end_of_text(text_model):
    tokenizer = text_model.preprocessor.tokenizer
    end = tokenizer.end_token_id
    for prompt in ("", "ab"):
        tokens = [end, *map(int, tokenizer(prompt))]
        expected = greedy(text_model, tokens, 12)
        new = expected[len(tokens) :]
        if end in new:
            expected = expected[: len(tokens) + new.index(end)]
        expected = bytes(token - 2 for token in expected if token > 1)
        assert text_model.generate(prompt) == expected.decode("utf-8", errors="replace")


def test_text_without_its_prompt(text_model):
    prompts = ["a", "some text"]
    texts = text_model.generate(prompts)
    stripped = text_model.generate(prompts, strip_prompt=True)
    assert [prompt + text for prompt, text in zip(prompts, stripped)] == texts
