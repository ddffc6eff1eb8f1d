import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads, LocalRoutingHeads
from rt_keras.layers.centroids import centroids_inside
from rt_keras.models import RoutingTransformerCausalLM
from rt_keras.models import RoutingTransformerCausalLMPreprocessor as Preprocessor
from rt_keras.models.causal_lm import causal_lm
from tests.models import checks
from tests.models.checks import greedy

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@pytest.fixture(scope="module")
def model():
    """Works on token ids."""
    return checks.make_lm()


@pytest.fixture(scope="module")
def text_model():
    """Works on strings."""
    preprocessor = Preprocessor(ByteTokenizer(), sequence_length=8)
    model = checks.make_lm(preprocessor, loss_chunk_size=7, vocabulary_size=258, num_layers=1)
    model.compile(sampler="greedy", run_eagerly=True)
    return model


def test_logits_are_those_of_the_tied_embedding(model):
    inputs = checks.inputs(checks.random_tokens(2, 9), lengths=[9, 5])
    embeddings = np.asarray(model.backbone.token_embedding.embeddings)
    expected = np.asarray(model.backbone(inputs)) @ embeddings.T
    logits = model(inputs)
    assert logits.shape == (2, 9, checks.VOCABULARY)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert checks.make_lm(dtype="mixed_bfloat16", num_layers=1)(inputs).dtype == "float32"


# Files.


def test_a_file_and_a_preset_keep_the_model(text_model, tmp_path):
    inputs = text_model.preprocessor(["some text", ""])[0]
    cls = keras_hub.models.CausalLM
    loaded = checks.check_files(text_model, lambda model: model(inputs), tmp_path, cls=cls)
    assert type(loaded.preprocessor) is Preprocessor
    assert loaded.preprocessor.sequence_length == 8 and loaded.loss_chunk_size == 7


# Generation.


@pytest.fixture(scope="module")
def writer():
    """A model of one block whose next token depends strongly on all preceding tokens."""
    model = checks.make_lm(num_layers=1, hidden_dim=16)
    for weight in model.trainable_variables:
        if weight.path.endswith(("kernel", "relative_embeddings")):
            weight.assign(5 * weight)
    return model


@pytest.fixture(scope="module")
def prompts():
    """Prompts of lengths 1, 3, 6 and 9, the maximum, which other tokens follow."""
    found = checks.inputs(checks.random_tokens(4, 9, seed=3), lengths=[1, 3, 6, 9])
    return {**found, "token_ids": np.where(found["padding_mask"], found["token_ids"], 7)}


@pytest.fixture(scope="module")
def continuations(writer, prompts):
    lengths = prompts["padding_mask"].sum(-1)
    found = [greedy(writer, row[:n], 9) for row, n in zip(prompts["token_ids"], lengths)]
    assert all(len(set(tokens)) > 4 for tokens in found)
    return found


def test_a_row_ends_at_its_first_new_stop_token(writer, prompts, continuations):
    # The token also occurs in the prompt, where it does not stop generation.
    stop = continuations[1][5]
    tokens = {**prompts, "token_ids": prompts["token_ids"].copy()}
    tokens["token_ids"][3, :] = stop
    writer.compile(sampler="greedy", run_eagerly=True)
    found = writer.generate(tokens, stop_token_ids=[stop, checks.VOCABULARY + 1])
    for row, n in enumerate((1, 3, 6)):
        new = continuations[row][n:]
        end = n + new.index(stop) + 1 if stop in new else 9
        assert found["token_ids"][row, :end].tolist() == continuations[row][:end]
        assert found["padding_mask"][row].tolist() == [i < end for i in range(9)]
    assert found["padding_mask"][3].all()
    assert not centroids_inside(writer)[0].member_counts.numpy().any()
    assert not found["padding_mask"].all()
    # It ends when all rows have.
    tokens = {name: x[:1] for name, x in prompts.items()}
    found = writer.generate(tokens, stop_token_ids=[continuations[0][1]])
    assert found["token_ids"][0, :2].tolist() == continuations[0][:2]
    assert found["padding_mask"][0].tolist() == [True, True] + [False] * 7


# Decoding with a cache.


CACHED = {
    "all options of a block": {
        "shift_tokens": True,
        "normalize_first": False,
        "conv_kernel_size": [3, None],
        "max_sequence_length": 24,
        "embedding_dim": 6,
    },
    "sines": {"sinusoidal_positions": True},
}


def decoded(model, tokens, count):
    """The logits from position `count`, one position at a time."""
    length, outputs = tokens.shape[1], []
    _, cache = model.prefill(tokens[:, : count + 2], count, length)
    for position in range(count, length):
        here = tf.constant(tokens[:, position, None])
        logits, _, cache = model.call_with_cache(here, cache, tf.constant(position))
        outputs.append(logits)
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize(
    "changes", [pytest.param(x, marks=pytest.mark.slow if "block" not in x else ()) for x in CACHED]
)
def test_logits_of_one_position_at_a_time(changes):
    model = checks.make_lm(**CACHED[changes], dtype="float64")
    tokens = checks.random_tokens(2, 16)
    expected = model(checks.inputs(tokens))
    # Sines are computed in float32.
    tolerance = 1e-6 if model.backbone.embedding.sinusoidal_positions else 1e-10
    checks.same(decoded(model, tokens, 9), expected[:, 9:], tolerance)


# Greedy continuations are compared with recomputation above. Other random samplers differ from
# "top p" only in their use of the logits.
@pytest.mark.parametrize(
    "sampler",
    ["top p", *(pytest.param(x, marks=pytest.mark.slow) for x in ("beam", "contrastive"))],
)
def test_samplers_get_the_same_logits_as_with_recomputation(writer, prompts, sampler, monkeypatch):
    def generate(inputs):
        given = checks.SAMPLERS[sampler]()
        return writer.generate_step(inputs, sampler=given)["token_ids"].numpy().tolist()

    found = generate(prompts)
    assert writer.cached_decoding
    # A prompt continues in a batch as it does alone; a random sampler draws for each row.
    if sampler != "top p":
        assert found[1:2] == generate({name: x[1:2] for name, x in prompts.items()})
    monkeypatch.setattr(RoutingTransformerCausalLM, "cached_decoding", False)
    assert found == generate(prompts)
    if sampler == "top p":
        assert len(set(found[0])) > 3


@pytest.mark.parametrize(
    "mask, message",
    [
        ([[1, 1, 0], [0, 0, 0]], "row 1 is an empty prompt. .* such as end-of-text"),
        ([[1, 0, 1], [1, 1, 1]], "row 0 has padding inside its prompt"),
    ],
)
def test_prompts_that_cannot_be_continued(writer, mask, message):
    mask = np.array(mask)
    with pytest.raises(ValueError, match=f"padding_mask: {message}"):
        writer.generate({"token_ids": mask, "padding_mask": mask}, stop_token_ids=None)


def test_more_tokens_than_positions(prompts):
    with pytest.raises(ValueError, match="max_sequence_length=8 positions.*Received: length 9"):
        checks.make_lm(max_sequence_length=8).generate(prompts, stop_token_ids=None)


def test_empty_batches_and_sequences():
    options = {"shift_tokens": True, "num_layers": 1, "max_sequence_length": 8, "key_dim": 4}
    model = checks.make_lm(**options)
    for shape in ((0, 5), (2, 0), (0, 0)):
        inputs = {name: np.ones(shape, "int32") for name in ("token_ids", "padding_mask")}
        assert model(inputs).shape == (*shape, checks.VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [True, False])
def test_long_prompts_are_read_in_chunks_if_the_heads_allow_it(monkeypatch, bounded):
    heads = [LocalRoutingHeads(1, 4, 3, 4), LocalHeads(1, 4) if bounded else FullHeads(1)]
    model = checks.make_lm(head_groups=heads, shift_tokens=True, num_layers=1)
    model.compile(sampler="greedy", run_eagerly=True)
    inputs = checks.inputs(checks.random_tokens(2, 16), [11, 14])
    expected = model.generate(inputs, stop_token_ids=None)
    monkeypatch.setattr(causal_lm, "PROMPT_CHUNK", 4)
    found = model.generate(inputs, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])
    model.compile(sampler="contrastive", run_eagerly=True)
    if bounded:
        with pytest.raises(ValueError, match="A ContrastiveSampler .* at most 4 tokens"):
            model.generate(inputs, stop_token_ids=None)
