import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.data import ByteTokenizer
from rt_keras.layers import (
    ClusterStridedHeads,
    FullHeads,
    HashedHeads,
    LocalHeads,
    LocalRoutingHeads,
    RoutingHeads,
    StridedHeads,
)
from rt_keras.models import RoutingTransformerCausalLM, routing_transformer_causal_lm
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


# Causality.


NEAREST = [
    {},
    pytest.param({"num_probes": 2}, marks=pytest.mark.end_to_end),
    pytest.param({"share_qk": True}, marks=pytest.mark.end_to_end),
    {"share_qk": True, "num_probes": 2},
]


@pytest.mark.parametrize("routing", NEAREST, ids=str)
def test_no_output_depends_on_later_tokens(routing):
    changes = {"head_groups": checks.groups(**routing), "dtype": "float64"}
    assert checks.leak(make_model(**changes)) <= 1e-12


@pytest.mark.end_to_end
def test_no_output_depends_on_later_tokens_in_float32():
    assert checks.leak(make_model(head_groups=checks.groups(num_probes=2))) <= 1e-5


def test_no_output_depends_on_later_tokens_with_all_options():
    changes = {"shift_tokens": True, "normalize_first": False, "max_sequence_length": 24}
    assert checks.leak(make_model(**changes, dtype="float64")) <= 1e-12


@pytest.mark.end_to_end
@pytest.mark.parametrize("share_qk", [False, True])
def test_balanced_routing_does_depend_on_later_tokens(share_qk):
    groups = checks.groups(assignment="balanced", share_qk=share_qk)
    assert checks.leak(make_model(head_groups=groups, dtype="float64")) > 1e-2


# Training.


@pytest.mark.end_to_end
def test_training_lowers_the_loss():
    model = make_model(num_layers=1)
    model.compile(keras.optimizers.Adam(2e-2), jit_compile=True)
    tokens = np.tile(np.arange(1, 6, dtype="int32"), [4, 4])
    data = checks.inputs(tokens[:, :-1]), tokens[:, 1:]
    before = model.evaluate(*data, verbose=0)[0]
    epochs = model.fit(*data, epochs=20, verbose=0, callbacks=[CentroidEMA()]).history
    assert model.evaluate(*data, verbose=0)[0] < 0.3 * before
    assert "routing_0_entropy" in epochs


def fitted(jit_compile=False, loss_chunk_size=None, **changes):
    """The weights of a model and its history after a few steps on padded sequences."""
    backbone = checks.make_backbone(**{"num_layers": 1, **changes})
    model = RoutingTransformerCausalLM(backbone, loss_chunk_size=loss_chunk_size)
    model.compile(keras.optimizers.SGD(0.3), jit_compile=jit_compile)
    inputs = checks.inputs(checks.random_tokens(4, 11), lengths=[11, 7, 0, 9])
    history = model.fit(
        inputs,
        checks.random_tokens(4, 11, seed=1),
        sample_weight=inputs["padding_mask"].astype("float32"),
        batch_size=2,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[CentroidEMA(0.9)],
    ).history
    # XLA draws different samples.
    weights = [x for x in model.weights if x.name != "member_samples"]
    return [np.asarray(x) for x in weights], history


@pytest.mark.end_to_end
def test_options_that_save_memory_learn_the_same_with_xla():
    options = {"remat": True, "feed_forward_chunk_size": 4, "loss_chunk_size": 30}
    found, history = fitted(**options, jit_compile=True)
    expected, expected_history = fitted()
    for name in ("loss", "sparse_categorical_accuracy"):
        assert history[name] == pytest.approx(expected_history[name], abs=1e-5)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.end_to_end
def test_reversible_blocks_learn_the_same_with_xla():
    (found, history), (expected, expected_history) = (
        fitted(reversible=True, jit_compile=jit_compile) for jit_compile in (True, False)
    )
    assert history["loss"] == pytest.approx(expected_history["loss"], abs=1e-5)
    assert history["loss"][1] < history["loss"][0]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.end_to_end
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


@pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")
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
    model = make_model(num_layers=1, **changes)
    inputs = checks.inputs(checks.random_tokens(3, 9), lengths)
    weights = inputs["padding_mask"].astype("float32")
    with tf.GradientTape() as tape:
        logits = model(inputs, training=True)
        loss = model.compute_loss(inputs, inputs["token_ids"], logits, weights)
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for tensor in (logits, loss, *gradients):
        assert np.all(np.isfinite(tf.convert_to_tensor(tensor)))


@pytest.mark.end_to_end
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


@pytest.mark.end_to_end
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
    model = make_model(dtype="mixed_bfloat16", num_layers=1)
    model.save_to_preset(str(tmp_path))
    for options, dtype in (({}, "float32"), ({"dtype": "mixed_bfloat16"}, "bfloat16")):
        loaded = RoutingTransformerCausalLM.from_preset(str(tmp_path), **options)
        assert loaded.backbone(checks.inputs(checks.random_tokens(2, 9))).dtype == dtype
        for weight, expected in zip(loaded.weights, model.weights, strict=True):
            np.testing.assert_array_equal(weight, expected)


@pytest.mark.end_to_end
def test_exported(model, tmp_path):
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for length in (5, 12):
        inputs = checks.inputs(checks.random_tokens(2, length), lengths=[length, 3])
        found = loaded.serve({name: tf.constant(x) for name, x in inputs.items()})
        assert checks.largest_difference(found, model(inputs)) <= 1e-5


# Generation.


def greedy(model, prompt, length):
    """The greedy continuation of a prompt, from the logits of exactly the preceding tokens."""
    tokens = [int(token) for token in prompt]
    while len(tokens) < length:
        tokens.append(int(np.argmax(model(checks.inputs([tokens]))[0, -1])))
    return tokens


def make_writer(**changes):
    """A model whose next token depends strongly on all preceding tokens."""
    model = make_model(**changes)
    for weight in model.trainable_variables:
        if weight.path.endswith(("kernel", "relative_embeddings")):
            weight.assign(5 * weight)
    return model


@pytest.fixture(scope="module")
def writer():
    """A model of one block; tests of logits below cover the caches of several blocks."""
    return make_writer(num_layers=1, hidden_dim=16)


@pytest.fixture(scope="module")
def prompts():
    """Prompts of lengths 1, 3, 6 and 12, the maximum."""
    return checks.inputs(checks.random_tokens(4, 12, seed=3), lengths=[1, 3, 6, 12])


@pytest.fixture(scope="module")
def continuations(writer, prompts):
    lengths = prompts["padding_mask"].sum(-1)
    return [greedy(writer, row[:n], 12) for row, n in zip(prompts["token_ids"], lengths)]


@pytest.mark.end_to_end
@pytest.mark.parametrize("jit_compile", [pytest.param(True, marks=pytest.mark.end_to_end), False])
def test_greedy_continuations(writer, prompts, continuations, jit_compile):
    assert all(len(set(tokens)) > 5 for tokens in continuations)
    writer.compile(sampler="greedy", jit_compile=jit_compile)
    found = writer.generate(prompts, stop_token_ids=None)
    assert found["token_ids"].tolist() == continuations
    assert found["padding_mask"].all()
    assert not checks.routing_heads(writer.backbone)[0].member_counts.numpy().any()


@pytest.mark.end_to_end
def test_a_row_ends_at_its_first_new_stop_token(writer, prompts, continuations):
    # The token also occurs in the prompt, where it does not stop generation.
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


@pytest.mark.end_to_end
def test_generation_ends_when_all_rows_have(writer, prompts, continuations):
    tokens = {name: x[:1] for name, x in prompts.items()}
    stop = continuations[0][1]
    writer.compile(sampler="greedy", jit_compile=False)
    found = writer.generate(tokens, stop_token_ids=[stop])
    assert found["token_ids"][0].tolist() == continuations[0][:2] + [0] * 10


@pytest.mark.end_to_end
def test_seeds_of_samplers(writer, prompts):
    def sample(seed):
        writer.compile(sampler=keras_hub.samplers.TopKSampler(5, seed=seed), jit_compile=False)
        return writer.generate(prompts, stop_token_ids=None)["token_ids"].tolist()

    first = sample(1)
    assert sample(1) == first
    assert sample(2) != first


@pytest.mark.end_to_end
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


@pytest.mark.end_to_end
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


# Decoding with a cache.


CACHED = {
    "nearest": {"num_layers": 2},
    "probes": {"head_groups": checks.groups(num_probes=2)},
    "shared": {"head_groups": checks.groups(share_qk=True)},
    "full and strided": {"head_groups": [FullHeads(1), StridedHeads(1, 3)]},
    "positions": {"max_sequence_length": 24, "embedding_dim": 6},
    "token shift": {"shift_tokens": True, "normalize_first": False, "sinusoidal_positions": True},
    "reversible": {"num_layers": 2, "reversible": True, "shift_tokens": True},
    "convolutions": {"num_layers": 2, "conv_kernel_size": [3, None]},
}


def decoded(model, tokens, count, max_length=None, dtype="float64"):
    """The logits from position `count`, one position at a time."""
    length = tokens.shape[1]

    @tf.function(autograph=False)
    def decode(tokens):
        _, cache = model.prefill(tokens[:, : count + 2], count, max_length or length)
        outputs = tf.zeros([tokens.shape[0], length, model.backbone.vocabulary_size], dtype)

        def step(position, cache, outputs):
            logits, hidden, cache = model.call_with_cache(
                tokens[:, position, None], cache, position
            )
            here = (tf.range(length) == position)[:, None]
            return position + 1, cache, tf.where(here, tf.cast(logits, dtype), outputs)

        start = tf.constant(count), cache, outputs
        return tf.while_loop(lambda position, *_: position < length, step, start)[2]

    return decode(tf.constant(tokens))[:, count:].numpy()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            name, marks=() if name in ("nearest", "convolutions") else pytest.mark.end_to_end
        )
        for name in CACHED
    ],
)
def test_logits_of_one_position_at_a_time(changes):
    model = make_model(**{"num_layers": 1, **CACHED[changes]}, dtype="float64")
    tokens = checks.random_tokens(2, 24)
    expected = model(checks.inputs(tokens))
    found = decoded(model, tokens, 9)
    # Sines are computed in float32.
    tolerance = 1e-6 if model.backbone.sinusoidal_positions else 1e-11
    assert checks.largest_difference(found, expected[:, 9:]) <= tolerance


@pytest.mark.end_to_end
@pytest.mark.parametrize("changes", CACHED)
def test_logits_of_chunks(changes):
    model = make_model(**{"num_layers": 1, **CACHED[changes]}, dtype="float64")
    tokens = checks.random_tokens(2, 24)
    expected = model(checks.inputs(tokens))
    found = in_chunks(model, tokens, [5, 6, 19, 24])
    # Sines are computed in float32.
    tolerance = 1e-6 if model.backbone.sinusoidal_positions else 1e-10
    assert checks.largest_difference(found, expected) <= tolerance


def in_chunks(model, tokens, ends, jit_compile=False):
    """The logits of chunks that end at these positions."""
    step = tf.function(model.call_with_cache, autograph=False, jit_compile=jit_compile)
    cache, outputs = model.new_cache(len(tokens), tokens.shape[1]), []
    for start, end in zip([0, *ends], ends):
        logits, _, cache = step(tf.constant(tokens[:, start:end]), cache, tf.constant(start))
        outputs.append(logits)
    return np.concatenate(outputs, axis=1)


@pytest.mark.end_to_end
def test_logits_of_chunks_of_a_long_sequence():
    keras.utils.set_random_seed(0)
    heads = [
        LocalHeads(1, 64, max_relative_distance=32),
        RoutingHeads(1, 32, 64, max_relative_distance=32),
        LocalRoutingHeads(1, 64, 32, 64, max_relative_distance=32),
    ]
    model = make_model(head_groups=heads, hidden_dim=24, num_layers=3)
    tokens = checks.random_tokens(1, 8192)
    parallel = tf.function(lambda inputs: model(inputs), jit_compile=True)
    expected = parallel(checks.inputs(tokens))
    for length in (128, 512, 2048):
        found = in_chunks(model, tokens, list(range(length, 8193, length)), jit_compile=True)
        assert checks.largest_difference(found, expected) <= 1e-4, length


@pytest.mark.end_to_end
def test_logits_at_every_position_of_a_long_sequence():
    keras.utils.set_random_seed(0)
    heads = [
        LocalHeads(1, 64, max_relative_distance=32),
        RoutingHeads(1, 8, 64, max_relative_distance=32, num_probes=2),
    ]
    model = make_model(head_groups=heads, hidden_dim=16)
    tokens = checks.random_tokens(2, 4096)
    parallel = tf.function(lambda inputs: model(inputs), jit_compile=True)
    expected = parallel(checks.inputs(tokens)).numpy()
    mask = np.arange(4096) < np.array([[700], [1500]])

    class Reader(keras_hub.samplers.Sampler):
        """Takes each next token from the sequence and records the logits."""

        def __call__(self, next, prompt, cache, index, mask, **kwargs):
            def body(index, cache, notes):
                logits, _, cache = next(prompt, cache, index)
                return index + 1, cache, notes.write(index - 1, logits)

            notes = tf.TensorArray("float32", 4096, element_shape=[2, checks.VOCABULARY])
            start = index, cache, notes
            found = tf.while_loop(lambda index, *_: index < 4097, body, start)
            self.notes = found[2].stack()
            return prompt

    @tf.function(jit_compile=True)
    def read(tokens):
        reader = Reader()
        model.generate_step({"token_ids": tokens, "padding_mask": mask}, None, reader, 1024)
        return tf.transpose(reader.notes, [1, 0, 2])

    found = read(tf.constant(tokens)).numpy()
    assert checks.largest_difference(found[:, 699:], expected[:, 699:]) <= 1e-4


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_bfloat16(policy):
    # Without routing, in which rounding can break a near tie differently and change the keys.
    heads = [LocalHeads(1, 4, max_relative_distance=3), FullHeads(1)]
    model = make_model(head_groups=heads, dtype=policy, num_layers=1)
    tokens = checks.random_tokens(2, 24)
    expected = tf.cast(model(checks.inputs(tokens)), "float32")
    found = decoded(model, tokens, 9, dtype="float32")
    largest = float(tf.reduce_max(tf.abs(expected)))
    assert checks.largest_difference(found, expected[:, 9:]) <= 2e-2 * largest


def test_the_cache_has_one_size_and_the_batch_on_axis_0(model):
    def shapes(length):
        return [x.shape for x in tf.nest.flatten(model.new_cache(3, length))]

    assert shapes(1024) == shapes(65_536)
    assert all(shape[0] == 3 for shape in shapes(1024))
    full = make_model(head_groups=[FullHeads(1)])
    assert full.new_cache(3, 100)[0]["attention"][0]["full"]["key"].shape == (
        3,
        1,
        100,
        8,
    )


SAMPLERS = {
    "greedy": lambda: keras_hub.samplers.GreedySampler(),
    "top p": lambda: keras_hub.samplers.TopPSampler(0.9, seed=1),
    "beam": lambda: keras_hub.samplers.BeamSampler(num_beams=3),
    "contrastive": lambda: keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.3),
}


@pytest.fixture(scope="module")
def small_writer():
    """The first block of two."""
    model = make_model(num_layers=1)
    weights = {weight.path.split("/", 1)[-1]: weight for weight in make_writer().weights}
    for weight in model.weights:
        weight.assign(weights.get(weight.path.split("/", 1)[-1], weight))
    return model


# Greedy continuations are compared with recomputation above. Other random samplers differ from
# "top p" only in their use of the logits.
@pytest.mark.end_to_end
@pytest.mark.parametrize("sampler", ["top p", "beam", "contrastive"])
def test_samplers_get_the_same_logits_as_with_recomputation(
    small_writer, prompts, sampler, monkeypatch
):
    def generate():
        given = SAMPLERS[sampler]()
        step = tf.function(lambda x: small_writer.generate_step(x, sampler=given))
        return step(prompts)["token_ids"].numpy().tolist()

    found = generate()
    assert small_writer.cached_decoding
    monkeypatch.setattr(RoutingTransformerCausalLM, "cached_decoding", False)
    assert found == generate()
    assert len(set(found[0])) > 3


@pytest.mark.parametrize("sampler", ["beam", "contrastive"])
@pytest.mark.end_to_end
def test_prompts_of_different_lengths_continue_as_each_alone(small_writer, prompts, sampler):
    small_writer.compile(sampler=SAMPLERS[sampler](), jit_compile=False)
    together = small_writer.generate(prompts, stop_token_ids=None)["token_ids"]
    for row in range(4):
        one = {name: x[row : row + 1] for name, x in prompts.items()}
        alone = small_writer.generate(one, stop_token_ids=None)["token_ids"]
        assert together[row].tolist() == alone[0].tolist()


@pytest.mark.end_to_end
def test_tokens_after_the_prompts_are_ignored(writer, prompts, continuations):
    behind = np.where(prompts["padding_mask"], prompts["token_ids"], 7)
    step = tf.function(writer.generate_step)
    sampler = SAMPLERS["greedy"]()
    found = step({**prompts, "token_ids": behind}, sampler=sampler)
    assert found["token_ids"].numpy().tolist() == continuations


@pytest.mark.end_to_end
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
def test_sizes_unknown_when_traced(writer, prompts, continuations, sampler):
    spec = tf.TensorSpec([None, None], tf.int32)
    given = SAMPLERS[sampler]()

    @tf.function(input_signature=[{"token_ids": spec, "padding_mask": spec}])
    def generate(inputs):
        return writer.generate_step(inputs, sampler=given)

    found = generate({name: tf.constant(x, tf.int32) for name, x in prompts.items()})
    assert found["token_ids"].shape == (4, 12)
    if sampler == "greedy":
        assert found["token_ids"].numpy().tolist() == continuations


@pytest.mark.end_to_end
def test_one_trace_for_the_prompts_of_a_bucket(monkeypatch):
    model = make_model(num_layers=1, head_groups=[LocalHeads(1, 4)])
    model.compile(sampler="greedy", jit_compile=False)
    lengths = []
    prefill = model.prefill

    def counted(token_ids, *args):
        lengths.append(token_ids.shape[1])
        return prefill(token_ids, *args)

    monkeypatch.setattr(model, "prefill", counted)
    tokens = checks.random_tokens(2, 140)
    for prompt in (1, 30, 64):
        model.generate(checks.inputs(tokens, [prompt, 139]), stop_token_ids=None)
    assert lengths == [64]
    for prompt in (65, 128):
        model.generate(checks.inputs(tokens, [prompt, prompt]), stop_token_ids=None)
    assert lengths == [64, 128]
    model.generate(checks.inputs(tokens, [129, 139]), stop_token_ids=None)
    assert lengths == [64, 128, 140]


@pytest.mark.parametrize(
    "heads",
    [
        pytest.param(
            checks.groups(assignment="balanced", share_qk=True),
            marks=pytest.mark.end_to_end,
            id="balanced",
        ),
        pytest.param([HashedHeads(2, 2, 4)], id="hashed"),
    ],
)
def test_other_heads_recompute_each_prefix(heads, prompts):
    model = make_model(head_groups=heads, dtype="float64", num_layers=1)
    assert not model.cached_decoding
    sampler = SAMPLERS["greedy"]()
    found = tf.function(lambda x: model.generate_step(x, sampler=sampler))(prompts)
    for row, n in enumerate((1, 3, 6)):
        expected = greedy(model, prompts["token_ids"][row, :n], 12)
        assert found["token_ids"][row].numpy().tolist() == expected
    with pytest.raises(ValueError, match="depends on the whole sequence"):
        model.new_cache(1, 12)


def test_contrastive_search_without_a_cache(prompts):
    model = make_model(head_groups=[ClusterStridedHeads(2, 2, 4)], num_layers=1)
    model.compile(sampler=SAMPLERS["contrastive"](), jit_compile=False)
    found = model.generate(prompts, stop_token_ids=None)["token_ids"]
    given = prompts["padding_mask"].astype(bool)
    assert (found[given] == prompts["token_ids"][given]).all()
    assert found[0, 1:].any()


@pytest.mark.parametrize(
    "mask, message",
    [
        ([[1, 1, 0], [0, 0, 0]], "row 1 is an empty prompt. .* such as end-of-text"),
        ([[1, 1, 0], [0, 1, 1]], "row 1 starts with padding; left-align the prompts"),
        ([[1, 0, 1], [1, 1, 1]], "row 0 has padding inside its prompt"),
    ],
)
def test_prompts_that_cannot_be_continued(writer, mask, message):
    mask = np.array(mask)
    with pytest.raises(ValueError, match=f"padding_mask: {message}"):
        writer.generate({"token_ids": mask, "padding_mask": mask}, stop_token_ids=None)


def test_bad_use_of_the_cache(model):
    cache, tokens = model.new_cache(2, 12), tf.ones([2, 1], tf.int32)
    with pytest.raises(ValueError, match="each of the model's 2 blocks. Received: 1 entries"):
        model.call_with_cache(tokens, cache[:1], 0)
    full = make_model(head_groups=[FullHeads(1)])
    with pytest.raises(ValueError, match="holds 12 positions, 0 to 11. Received: position=12"):
        full.call_with_cache(tokens, full.new_cache(2, 12), 12)
    with pytest.raises(ValueError, match="holds 12 positions, 0 to 11. Received: position=13"):
        full.call_with_cache(tf.ones([2, 3], tf.int32), full.new_cache(2, 12), 11)


def test_more_tokens_than_positions(prompts):
    model = make_model(max_sequence_length=8)
    with pytest.raises(ValueError, match="max_sequence_length=8 positions.*Received: length 12"):
        model.generate(prompts, stop_token_ids=None)


@pytest.mark.end_to_end
def test_text_without_its_prompt(text_model):
    prompts = ["a", "some text"]
    texts = text_model.generate(prompts)
    stripped = text_model.generate(prompts, strip_prompt=True)
    assert [prompt + text for prompt, text in zip(prompts, stripped)] == texts


@pytest.mark.parametrize("batch, length", [(0, 5), (2, 0), (0, 0)])
def test_empty_batches_and_sequences(batch, length):
    groups = [LocalHeads(1, 4), RoutingHeads(1, 2, 4), FullHeads(1)]
    model = make_model(
        head_groups=groups, hidden_dim=9, shift_tokens=True, num_layers=1, max_sequence_length=8
    )
    inputs = {name: np.ones([batch, length], "int32") for name in ("token_ids", "padding_mask")}
    assert model(inputs).shape == (batch, length, model.backbone.vocabulary_size)


@pytest.mark.parametrize(
    "prompts", [[41], pytest.param([29, 40], marks=pytest.mark.end_to_end)], ids=str
)
def test_long_prompts_are_read_in_chunks(monkeypatch, prompts):
    heads = [LocalRoutingHeads(1, 4, 3, 4), LocalHeads(1, 4)]
    model = make_model(head_groups=heads, shift_tokens=True, num_layers=1)
    model.compile(sampler="greedy", run_eagerly=True)
    inputs = checks.inputs(checks.random_tokens(len(prompts), 44), prompts)
    expected = model.generate(inputs, stop_token_ids=None)
    monkeypatch.setattr(routing_transformer_causal_lm, "PROMPT_CHUNK", 16)
    found = model.generate(inputs, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])
    model.compile(sampler="contrastive", run_eagerly=True)
    with pytest.raises(ValueError, match="A ContrastiveSampler .* at most 16 tokens"):
        model.generate(inputs, stop_token_ids=None)


@pytest.mark.end_to_end
def test_long_prompts_of_other_heads_are_read_at_once(monkeypatch):
    model = RoutingTransformerCausalLM(checks.make_backbone(head_groups=[FullHeads(2)]))
    model.compile(sampler="greedy", run_eagerly=True)
    inputs = checks.inputs(checks.random_tokens(1, 24), [20])
    expected = model.generate(inputs, stop_token_ids=None)
    monkeypatch.setattr(routing_transformer_causal_lm, "PROMPT_CHUNK", 8)
    found = model.generate(inputs, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])
