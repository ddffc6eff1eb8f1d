import keras
import keras_hub
import numpy as np
import pytest

from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models import RoutingTransformerSeq2SeqLM
from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor as Preprocessor
from tests.models import checks
from tests.models.seq_2_seq import test_seq_2_seq_backbone

LOCAL = [LocalHeads(1, 4, key_block_size=8), FullHeads(1, max_relative_distance=3)]


def make_backbone(**changes):
    """One block on each side."""
    sizes = {"vocabulary_size": 258, "num_encoder_layers": 1, "num_layers": 1}
    return test_seq_2_seq_backbone.make_backbone(**sizes | changes)


def make_cached(**changes):
    """A model that decodes with a cache."""
    return RoutingTransformerSeq2SeqLM(make_backbone(cross_head_groups=LOCAL, **changes))


def make_inputs():
    """Random tokens; the last ones of the encoder's second row are padding."""
    make = test_seq_2_seq_backbone.make_inputs
    return make(24, 12, padding=5, padded=("encoder",))


@pytest.fixture(scope="module")
def model():
    preprocessor = Preprocessor(ByteTokenizer(), 16, 8)
    return RoutingTransformerSeq2SeqLM(make_backbone(), preprocessor)


def test_untied_by_way_of_another_width():
    model = RoutingTransformerSeq2SeqLM(make_backbone(embedding_dim=6, tie_embeddings=False))
    hidden = model.backbone(make_inputs())["decoder_sequence_output"]
    expected = model.output_dense(model.output_projection(hidden))
    assert model.output_projection.kernel.shape == (8, 6)
    np.testing.assert_allclose(model(make_inputs()), expected, atol=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss():
    groups = {"encoder_head_groups": [FullHeads(2)], "head_groups": checks.groups()}
    model, inputs = make_cached(**groups), make_inputs()
    model.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    checks.check_fit(model, inputs, inputs["decoder_token_ids"])


def test_generation_from_strings(model):
    # Balanced cross-attention has no cache.
    assert not model.cached_decoding
    model.compile(sampler="greedy", run_eagerly=True)
    inputs = {"encoder_text": ["ab", "cde"], "decoder_text": ["", "x"]}
    first, second = model.generate(inputs, max_length=8)
    assert isinstance(first, str) and second.startswith("x")


# Decoding with a cache.


def with_prompts():
    """Prompts of lengths 2 and 5."""
    mask = (np.arange(12) < np.array([[2], [5]])).astype("int32")
    return {**make_inputs(), "decoder_padding_mask": mask}


@pytest.mark.parametrize("sampler", ["greedy", pytest.param("beam", marks=pytest.mark.slow)])
def test_samplers_get_the_same_logits_as_with_recomputation(sampler, monkeypatch):
    options = {"encoder_head_groups": [FullHeads(2)], "head_groups": [LocalHeads(2, 4)]}
    options |= {"shift_tokens": True, "conv_kernel_size": 3}
    model, inputs, encoded = make_cached(**options), with_prompts(), []
    encode = model.backbone.encode
    monkeypatch.setattr(
        model.backbone, "encode", lambda *x, **y: encoded.append(1) or encode(*x, **y)
    )

    def generate():
        found = model.generate_step(inputs, sampler=checks.SAMPLERS[sampler]())
        return found["decoder_token_ids"].numpy().tolist()

    found = generate()
    assert encoded == [1] and model.cached_decoding
    monkeypatch.setattr(RoutingTransformerSeq2SeqLM, "cached_decoding", False)
    assert found == generate()


@pytest.mark.slow
def test_generation_compiled_by_xla():
    model, inputs = make_cached(), with_prompts()
    model.compile(sampler="greedy")
    assert model.jit_generate
    expected = model.generate_step(inputs)["decoder_token_ids"]
    found = model.generate(inputs, stop_token_ids=None)["decoder_token_ids"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_file_and_a_preset_keep_the_model(model, tmp_path):
    inputs, cls = make_inputs(), keras_hub.models.Seq2SeqLM
    loaded = checks.check_files(model, lambda copy: copy(inputs), tmp_path, cls=cls)
    assert loaded.preprocessor.encoder_sequence_length == 16
    assert isinstance(loaded.preprocessor.tokenizer, ByteTokenizer)
