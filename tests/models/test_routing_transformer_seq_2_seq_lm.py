import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerSeq2SeqBackbone, RoutingTransformerSeq2SeqLM
from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor as Preprocessor
from rt_keras.training.config import load_config
from tests.models import checks


def make_backbone(**changes):
    """One block on each side; weights are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    settings = {
        "vocabulary_size": 258,
        "num_encoder_layers": 1,
        "num_layers": 1,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "encoder_head_groups": checks.groups(),
        "head_groups": checks.groups(),
        "cross_head_groups": [
            LocalHeads(1, 4, key_block_size=8),
            RoutingHeads(1, 3, 8, assignment="balanced"),
        ],
    }
    backbone = RoutingTransformerSeq2SeqBackbone(**{**settings, **changes})
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return backbone


def make_inputs(encoder_length=24, decoder_length=12, padding=5):
    """Random tokens; the last ones of the encoder's second row are padding."""
    encoder = checks.random_tokens(2, encoder_length, seed=1)
    mask = np.ones_like(encoder)
    mask[1, encoder_length - padding :] = 0
    decoder = checks.random_tokens(2, decoder_length, seed=2)
    return {
        "encoder_token_ids": encoder * mask,
        "encoder_padding_mask": mask,
        "decoder_token_ids": decoder,
        "decoder_padding_mask": np.ones_like(decoder),
    }


@pytest.fixture(scope="module")
def model():
    preprocessor = Preprocessor(ByteTokenizer(), 16, 8)
    return RoutingTransformerSeq2SeqLM(make_backbone(), preprocessor)


def test_logits_are_those_of_the_tied_embedding(model):
    inputs = make_inputs()
    hidden = model.backbone(inputs)["decoder_sequence_output"]
    expected = np.asarray(hidden) @ np.asarray(model.backbone.token_embedding.embeddings).T
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)


def test_untied_by_way_of_another_width():
    model = RoutingTransformerSeq2SeqLM(make_backbone(embedding_dim=6, tie_embeddings=False))
    assert model.output_projection.kernel.shape == (8, 6)
    assert model.output_dense.kernel.shape == (6, 258)
    assert model(make_inputs()).shape == (2, 12, 258)


def test_the_decoder_sees_the_whole_encoder_and_its_own_past(model):
    inputs = make_inputs()
    expected = model(inputs).numpy()
    changed = {**inputs, "decoder_token_ids": inputs["decoder_token_ids"].copy()}
    changed["decoder_token_ids"][:, 7:] = 3
    found = model(changed).numpy()
    # In balanced cross-attention, queries of a cluster compete with later ones. Only with local
    # cross-attention are earlier outputs unchanged; see below.
    assert np.abs(found[:, 7:] - expected[:, 7:]).max() > 1e-2
    changed = {**inputs, "encoder_token_ids": inputs["encoder_token_ids"].copy()}
    changed["encoder_token_ids"][0, -1] = 3
    assert np.abs(model(changed).numpy()[0, -1] - expected[0, -1]).max() > 1e-4


def test_with_local_attention_to_the_encoder_the_decoder_is_causal():
    model = RoutingTransformerSeq2SeqLM(
        make_backbone(cross_head_groups=[LocalHeads(2, 4, key_block_size=8)])
    )
    inputs = make_inputs()
    expected = model(inputs).numpy()
    changed = {**inputs, "decoder_token_ids": inputs["decoder_token_ids"].copy()}
    changed["decoder_token_ids"][:, 7:] = 3
    np.testing.assert_allclose(model(changed)[:, :7], expected[:, :7], rtol=0, atol=1e-5)


def test_the_encoders_padding_is_not_seen(model):
    inputs = make_inputs()
    expected = model(inputs)
    inputs["encoder_token_ids"] = np.where(
        inputs["encoder_padding_mask"] == 0, 9, inputs["encoder_token_ids"]
    )
    np.testing.assert_allclose(model(inputs), expected, rtol=0, atol=1e-5)


@pytest.mark.end_to_end
def test_training_lowers_the_loss():
    model = RoutingTransformerSeq2SeqLM(make_backbone(dropout=0.0))
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    inputs = make_inputs()
    history = model.fit(
        inputs, inputs["decoder_token_ids"], epochs=5, verbose=0, callbacks=[CentroidEMA()]
    ).history
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.end_to_end
def test_generation_from_strings(model):
    model.compile(sampler="greedy", jit_compile=False)
    inputs = {"encoder_text": ["ab", "cde"], "decoder_text": ["", "x"]}
    first, second = model.generate(inputs, max_length=8)
    assert isinstance(first, str) and second.startswith("x")
    tokens = model.preprocessor.generate_preprocess(inputs)
    tokens = {name: np.asarray(x) for name, x in tokens.items()}
    # Token by token, by the scores of the model itself.
    written = tokens["decoder_token_ids"].copy()
    for t in range(1, 8):
        given = {**tokens, "decoder_token_ids": written}
        known = np.broadcast_to(np.arange(8) < t, written.shape).astype("int32")
        logits = model({**given, "decoder_padding_mask": known})
        likeliest = np.argmax(logits[:, t - 1], axis=-1)
        prompt = tokens["decoder_padding_mask"][:, t]
        written[:, t] = np.where(prompt, written[:, t], likeliest)
    found = model.generate_step(tokens)["decoder_token_ids"]
    np.testing.assert_array_equal(found, written)


# Decoding with a cache.


CROSS = {
    "full": [FullHeads(2, max_relative_distance=3)],
    "local": [LocalHeads(1, 4, key_block_size=8), FullHeads(1)],
}
SAMPLERS = {
    "greedy": lambda: keras_hub.samplers.GreedySampler(),
    "beam": lambda: keras_hub.samplers.BeamSampler(num_beams=3),
    "contrastive": lambda: keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.3),
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"shift_tokens": True}, marks=pytest.mark.end_to_end),
        {"conv_kernel_size": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("cross", CROSS)
def test_logits_of_one_position_at_a_time(cross, changes):
    model = RoutingTransformerSeq2SeqLM(
        make_backbone(cross_head_groups=CROSS[cross], dtype="float64", **changes)
    )
    inputs = make_inputs()
    expected = model(inputs)
    tokens, mask = inputs["decoder_token_ids"], inputs["encoder_padding_mask"]
    embedded = model.backbone.embed_encoder_tokens(inputs["encoder_token_ids"], mask)
    cross_caches = model.backbone.make_cross_cache(model.backbone.encode(embedded, mask), mask)
    hidden, cache = model.backbone.prefill(tokens[:, :7], cross_caches, 5, 12)
    np.testing.assert_allclose(model.token_logits(hidden), expected[:, :7], rtol=0, atol=1e-11)
    for position in range(5, 12):
        logits, _, cache = model.call_with_cache(
            tokens[:, position, None], cross_caches, cache, position
        )
        np.testing.assert_allclose(logits[:, 0], expected[:, position], rtol=0, atol=1e-11)


@pytest.mark.end_to_end
def test_whole_documents_of_4096_tokens_one_position_at_a_time():
    config = load_config("translate_pages", ["model.hidden_dim=32", "model.intermediate_dim=32"])
    section = config.model
    model = RoutingTransformerSeq2SeqLM.from_section(section, 258, "float32")
    rng = np.random.default_rng(0)
    for weight in model.backbone.trainable_variables:
        weight.assign(weight + 0.1 * rng.normal(size=weight.shape))
    length = config.data.sequence_length
    inputs = make_inputs(length, length, padding=100)
    tokens, mask = inputs["decoder_token_ids"], inputs["encoder_padding_mask"]

    @tf.function(jit_compile=True)
    def read():
        embedded = model.backbone.embed_encoder_tokens(inputs["encoder_token_ids"], mask)
        cross = model.backbone.make_cross_cache(model.backbone.encode(embedded, mask), mask)
        _, cache = model.backbone.prefill(tokens, cross, length - 30, length)
        return model(inputs), cross, cache

    step = tf.function(model.call_with_cache, jit_compile=True)
    expected, cross, cache = read()
    for position in range(length - 30, length):
        logits, _, cache = step(tokens[:, position, None], cross, cache, tf.constant(position))
        np.testing.assert_allclose(logits[:, 0], expected[:, position], rtol=0, atol=1e-4)


@pytest.mark.end_to_end
@pytest.mark.parametrize("cross, sampler", [("full", "contrastive"), ("local", "beam")])
def test_samplers_get_the_same_logits_as_with_recomputation(cross, sampler, monkeypatch):
    model = RoutingTransformerSeq2SeqLM(make_backbone(cross_head_groups=CROSS[cross]))
    inputs = make_inputs()
    # Prompts of lengths 2 and 5.
    inputs["decoder_padding_mask"] = (np.arange(12) < np.array([[2], [5]])).astype("int32")
    encoded = []
    encode = model.backbone.encode
    monkeypatch.setattr(
        model.backbone, "encode", lambda *x, **y: encoded.append(1) or encode(*x, **y)
    )

    def generate():
        given = SAMPLERS[sampler]()
        step = tf.function(lambda x: model.generate_step(x, sampler=given))
        return step(inputs)["decoder_token_ids"].numpy().tolist()

    found = generate()
    assert encoded == [1]
    assert model.cached_decoding
    monkeypatch.setattr(RoutingTransformerSeq2SeqLM, "cached_decoding", False)
    assert found == generate()


@pytest.mark.end_to_end
def test_generation_compiled_by_xla():
    # The encoder runs once, before generation, and is compiled with routing below.
    heads = {"encoder_head_groups": [FullHeads(2)], "cross_head_groups": CROSS["local"]}
    model = RoutingTransformerSeq2SeqLM(make_backbone(**heads))
    inputs = make_inputs()
    inputs["decoder_padding_mask"] = (np.arange(12) < np.array([[2], [5]])).astype("int32")
    model.compile(sampler="greedy")
    assert model.jit_generate
    found = model.generate(inputs, stop_token_ids=None)["decoder_token_ids"]
    likeliest = np.argmax(
        model({**inputs, "decoder_token_ids": found, "decoder_padding_mask": np.ones_like(found)}),
        axis=-1,
    )
    for row, length in enumerate((2, 5)):
        assert found[row, length:].tolist() == likeliest[row, length - 1 : -1].tolist()


def test_balanced_cross_attention_has_no_cache(model):
    assert not model.cached_decoding


def test_saved_and_loaded(model, tmp_path):
    inputs = make_inputs()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_as_a_preset(model, tmp_path):
    model.save_to_preset(str(tmp_path / "preset"))
    loaded = RoutingTransformerSeq2SeqLM.from_preset(str(tmp_path / "preset"))
    inputs = make_inputs()
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert loaded.preprocessor.encoder_sequence_length == 16
    assert isinstance(loaded.preprocessor.tokenizer, ByteTokenizer)


@pytest.mark.end_to_end
def test_compiled_by_xla(model):
    inputs = {name: tf.constant(x) for name, x in make_inputs().items()}
    compiled = tf.function(lambda x: model(x), jit_compile=True)
    np.testing.assert_allclose(compiled(inputs), model(inputs), rtol=0, atol=1e-4)


def test_preprocessor_refuses_wrong_arguments():
    with pytest.raises(TypeError, match="tokenizer must be .* a str"):
        Preprocessor("bytes")
    with pytest.raises(ValueError, match="must be at least 1. Received: decoder_sequence_length=0"):
        Preprocessor(ByteTokenizer(), 4, 0)


@pytest.mark.parametrize("batch, length, decoder_length", [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_empty_batches_and_sequences(batch, length, decoder_length):
    cross = [RoutingHeads(2, 2, 4, assignment="balanced")]
    model = RoutingTransformerSeq2SeqLM(make_backbone(cross_head_groups=cross))
    inputs = {
        name: np.ones([batch, decoder_length if "decoder" in name else length], "int32")
        for name in model.backbone.input
    }
    size = model.backbone.vocabulary_size
    assert model(inputs).shape == (batch, decoder_length, size)
