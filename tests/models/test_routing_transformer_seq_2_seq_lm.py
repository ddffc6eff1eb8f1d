import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerSeq2SeqBackbone, RoutingTransformerSeq2SeqLM
from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor as Preprocessor
from rt_keras.training.config import load_config
from tests.models import checks

LOCAL = [LocalHeads(1, 4, key_block_size=8), FullHeads(1, max_relative_distance=3)]


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
    return checks.as_if_trained(RoutingTransformerSeq2SeqBackbone(**{**settings, **changes}))


def make_cached(**changes):
    """A model that decodes with a cache."""
    return RoutingTransformerSeq2SeqLM(make_backbone(cross_head_groups=LOCAL, **changes))


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
    hidden = model.backbone(make_inputs())["decoder_sequence_output"]
    expected = model.output_dense(model.output_projection(hidden))
    assert model.output_projection.kernel.shape == (8, 6)
    np.testing.assert_allclose(model(make_inputs()), expected, atol=1e-5)


@pytest.mark.slow
def test_the_decoder_sees_the_real_tokens_of_the_encoder_and_its_own_past():
    # In balanced cross-attention, queries of a cluster compete with later ones.
    model, inputs = make_cached(), make_inputs()
    expected = model(inputs).numpy()
    changed = {**inputs, "decoder_token_ids": inputs["decoder_token_ids"].copy()}
    changed["decoder_token_ids"][:, 7:] = 3
    found = model(changed).numpy()
    assert np.abs(found[:, 7:] - expected[:, 7:]).max() > 1e-2
    np.testing.assert_allclose(found[:, :7], expected[:, :7], rtol=0, atol=1e-5)
    changed = {**inputs, "encoder_token_ids": inputs["encoder_token_ids"].copy()}
    changed["encoder_token_ids"][0, -1] = 3
    assert np.abs(model(changed).numpy()[0, -1] - expected[0, -1]).max() > 1e-4


def test_the_encoders_padding_is_not_seen(model):
    inputs = make_inputs()
    expected = model(inputs)
    inputs["encoder_token_ids"] = np.where(
        inputs["encoder_padding_mask"] == 0, 9, inputs["encoder_token_ids"]
    )
    np.testing.assert_allclose(model(inputs), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss():
    groups = {"encoder_head_groups": [FullHeads(2)], "head_groups": checks.groups()}
    model, inputs = make_cached(**groups), make_inputs()
    model.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    checks.check_fit(model, inputs, inputs["decoder_token_ids"])


def recomputed(model, tokens, length):
    """Greedy decoding token by token, by the scores of the model itself."""
    written = tokens["decoder_token_ids"].copy()
    for t in range(1, length):
        known = np.broadcast_to(np.arange(length) < t, written.shape).astype("int32")
        given = {**tokens, "decoder_token_ids": written, "decoder_padding_mask": known}
        likeliest = np.argmax(model(given)[:, t - 1], axis=-1)
        prompt = tokens["decoder_padding_mask"][:, t]
        written[:, t] = np.where(prompt, written[:, t], likeliest)
    return written


def test_generation_from_strings(model):
    # Balanced cross-attention has no cache.
    assert not model.cached_decoding
    model.compile(sampler="greedy", run_eagerly=True)
    inputs = {"encoder_text": ["ab", "cde"], "decoder_text": ["", "x"]}
    first, second = model.generate(inputs, max_length=8)
    assert isinstance(first, str) and second.startswith("x")


# Decoding with a cache.


SAMPLERS = {
    "greedy": lambda: keras_hub.samplers.GreedySampler(),
    "beam": lambda: keras_hub.samplers.BeamSampler(num_beams=3),
    "contrastive": lambda: keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shift_tokens": True, "conv_kernel_size": 3}], ids=str)
def test_logits_of_one_position_at_a_time(options):
    model, inputs = make_cached(dtype="float64", **options), make_inputs()
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


@pytest.mark.slow
def test_whole_documents_of_4096_tokens_one_position_at_a_time():
    sizes = ("num_layers=1", "num_encoder_layers=1", "hidden_dim=32", "intermediate_dim=32")
    config = load_config("translate_pages", [f"model.{size}" for size in sizes])
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


def with_prompts():
    """Prompts of lengths 2 and 5."""
    mask = (np.arange(12) < np.array([[2], [5]])).astype("int32")
    return {**make_inputs(), "decoder_padding_mask": mask}


@pytest.mark.parametrize(
    "sampler",
    [
        "greedy",
        pytest.param("beam", marks=pytest.mark.slow),
        pytest.param("contrastive", marks=pytest.mark.slow),
    ],
)
def test_samplers_get_the_same_logits_as_with_recomputation(sampler, monkeypatch):
    groups = {"encoder_head_groups": [FullHeads(2)], "head_groups": [LocalHeads(2, 4)]}
    model, inputs, encoded = make_cached(**groups), with_prompts(), []
    encode = model.backbone.encode
    monkeypatch.setattr(
        model.backbone, "encode", lambda *x, **y: encoded.append(1) or encode(*x, **y)
    )

    def generate():
        found = model.generate_step(inputs, sampler=SAMPLERS[sampler]())
        return found["decoder_token_ids"].numpy().tolist()

    found = generate()
    assert encoded == [1] and model.cached_decoding
    if sampler == "greedy":
        assert found == recomputed(model, inputs, 12).tolist()
    monkeypatch.setattr(RoutingTransformerSeq2SeqLM, "cached_decoding", False)
    assert found == generate()


@pytest.mark.slow
def test_generation_compiled_by_xla():
    model, inputs = make_cached(), with_prompts()
    model.compile(sampler="greedy")
    assert model.jit_generate
    found = model.generate(inputs, stop_token_ids=None)["decoder_token_ids"]
    assert found.tolist() == recomputed(model, inputs, 12).tolist()


@pytest.mark.slow
def test_a_file_and_a_preset_keep_the_model(model, tmp_path):
    inputs, cls = make_inputs(), keras_hub.models.Seq2SeqLM
    loaded = checks.check_files(model, lambda copy: copy(inputs), tmp_path, cls=cls)
    assert loaded.preprocessor.encoder_sequence_length == 16
    assert isinstance(loaded.preprocessor.tokenizer, ByteTokenizer)


@pytest.mark.slow
def test_empty_batches_and_sequences():
    cross = [RoutingHeads(2, 2, 4, assignment="balanced")]
    model = RoutingTransformerSeq2SeqLM(make_backbone(cross_head_groups=cross))
    for batch, length, decoder_length in ((0, 5, 5), (2, 0, 5), (2, 5, 0)):
        inputs = {
            name: np.ones([batch, decoder_length if "decoder" in name else length], "int32")
            for name in model.backbone.input
        }
        assert model(inputs).shape == (batch, decoder_length, 258)
