import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, TokenShift, TransformerBlock
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

WIDTH = 12


def groups(assignment="nearest", dtype=None, **options):
    return [
        LocalHeads(1, 4, max_relative_distance=3, dtype=dtype),
        RoutingHeads(
            2, 3, 4, assignment=assignment, max_relative_distance=3, dtype=dtype, **options
        ),
    ]


def block(assignment="nearest", dtype=None, heads=None, **options):
    return TransformerBlock(heads or groups(assignment, dtype), 16, dtype=dtype, **options)


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("shift_tokens", [False, True])
def test_equation(normalize_first, shift_tokens):
    x = checks.random(2, 9, WIDTH)
    mask = checks.padding(2, 9)
    layer = block(normalize_first=normalize_first, shift_tokens=shift_tokens)
    found = layer(x, padding_mask=mask, use_causal_mask=True)

    def shift(y):
        return TokenShift()(y, mask=mask) if shift_tokens else y

    def attention(y):
        y = shift(y)
        return layer.attention(y, y, query_mask=mask, value_mask=mask, use_causal_mask=True)

    def feed_forward(y):
        return layer.feed_forward(shift(y))

    if normalize_first:
        y = x + attention(layer.attention_norm(x))
        expected = y + feed_forward(layer.feed_forward_norm(y))
    else:
        y = layer.attention_norm(x + attention(x))
        expected = layer.feed_forward_norm(y + feed_forward(y))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert found.shape == layer.compute_output_shape(x.shape) == x.shape


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("shift_tokens", [False, True])
def test_cross_attention(normalize_first, shift_tokens):
    x, encoded = checks.random(2, 9, WIDTH), checks.random(2, 5, WIDTH, seed=1)
    mask, encoder_mask = checks.padding(2, 9), checks.padding(2, 5)
    layer = block(
        heads=[LocalHeads(3, 4)],
        cross_head_groups=[FullHeads(3)],
        normalize_first=normalize_first,
        shift_tokens=shift_tokens,
    )
    found = layer(
        x,
        padding_mask=mask,
        use_causal_mask=True,
        encoder_outputs=encoded,
        encoder_padding_mask=encoder_mask,
    )

    def attention(y):
        return layer.attention(y, y, query_mask=mask, value_mask=mask, use_causal_mask=True)

    def cross_attention(y):
        return layer.cross_attention(y, encoded, query_mask=mask, value_mask=encoder_mask)

    y = x
    for function, norm in (
        (attention, layer.attention_norm),
        (cross_attention, layer.cross_attention_norm),
        (layer.feed_forward, layer.feed_forward_norm),
    ):
        z = norm(y) if normalize_first else y
        z = TokenShift()(z, mask=mask) if shift_tokens else z
        y = y + function(z) if normalize_first else norm(y + function(z))
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-6)
    checks.trains_every_weight(layer, x, encoder_outputs=encoded, training=True)


def test_dropout_before_each_residual():
    x = checks.random(2, 9, WIDTH)
    rates = {"attention_dropout": 0.0, "activation_dropout": 0.0}
    for normalize_first in (True, False):
        layer = block(normalize_first=normalize_first, dropout=0.5, **rates)
        assert checks.largest_difference(layer(x, training=True), layer(x)) > 1e-2


@pytest.mark.parametrize("name", ["attention_dropout", "activation_dropout"])
def test_separate_dropout_rates(name):
    x = checks.random(2, 9, WIDTH)
    layer = block(**{name: 0.5})
    assert layer.attention.dropout == (0.5 if name == "attention_dropout" else 0.0)
    assert layer.feed_forward.dropout == (0.5 if name == "activation_dropout" else 0.0)
    assert checks.largest_difference(layer(x, training=True), layer(x)) > 1e-3
    other = block(dropout=0.5, **{name: 0.0})
    rates = {"attention_dropout": other.attention, "activation_dropout": other.feed_forward}
    assert rates.pop(name).dropout == 0.0
    assert [layer.dropout for layer in rates.values()] == [0.5]


def test_without_biases():
    x = checks.random(2, 9, WIDTH)
    for name in ("attention", "feed_forward"):
        layer = block(**{f"{name}_bias": False})
        layer(x)
        biases = [weight.path for weight in layer.weights if weight.path.endswith("/bias")]
        other = {"attention": "feed_forward", "feed_forward": "attention"}[name]
        assert any(f"/{other}/" in path for path in biases)
        assert not any(f"/{name}/" in path for path in biases)


@pytest.mark.parametrize("length", [1, 3, 17])
def test_unknown_length(length):
    layer = block()
    inputs = keras.Input((None, WIDTH))
    output = layer(inputs, use_causal_mask=True)
    assert output.shape == (None, None, WIDTH)
    x = checks.random(2, length, WIDTH)
    expected = layer(x, use_causal_mask=True)
    assert checks.largest_difference(keras.Model(inputs, output)(x), expected) < 1e-5


def test_masks():
    ids = np.array([[1, 2, 3, 4, 0, 0], [4, 3, 2, 1, 1, 0]])
    masked = keras.layers.Embedding(5, WIDTH, mask_zero=True)(ids)
    x = tf.identity(masked)
    layer = block()
    found = layer(masked)
    assert checks.mask_of(found) == (ids != 0).tolist()
    for mask in (ids != 0, (ids != 0).astype("int32"), ids):
        np.testing.assert_array_equal(layer(x, padding_mask=mask), found)
    # An explicit mask overrides the mask of the tensor.
    everything = np.ones_like(ids)
    np.testing.assert_array_equal(layer(masked, padding_mask=everything), layer(x))
    assert checks.largest_difference(found, layer(x)) > 1e-3


@pytest.mark.parametrize("kind", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_does_not_change_outputs(kind, causal):
    mask = checks.padding(2, 9, kind)
    x = checks.random(2, 9, WIDTH)
    other = np.where(mask[..., None], x, checks.random(2, 9, WIDTH, seed=5))
    shared = RoutingHeads(1, 2, 4, share_qk=True)
    balanced = RoutingHeads(1, 2, 4, assignment="balanced")
    layers = [block(shift_tokens=True), block(heads=[shared, balanced, FullHeads(1)])]
    found, expected = x, other
    for layer in layers:
        found = layer(found, padding_mask=mask, use_causal_mask=causal).numpy()
        expected = layer(expected, padding_mask=mask, use_causal_mask=causal).numpy()
    assert checks.largest_difference(found[mask], expected[mask]) < 1e-5
    assert checks.largest_difference(found[~mask], expected[~mask]) > 1e-3


@pytest.mark.parametrize("normalize_first", [False, True])
def test_gradient_reaches_every_weight(normalize_first):
    layer = block(normalize_first=normalize_first, dropout=0.1)
    x = checks.random(2, 9, WIDTH)
    checks.trains_every_weight(layer, x, use_causal_mask=True, training=True)


def test_dropout_only_in_training():
    x = checks.random(2, 9, WIDTH)
    layer = block(dropout=0.5)
    np.testing.assert_array_equal(layer(x), layer(x, training=False))
    assert checks.largest_difference(layer(x, training=True), layer(x)) > 1e-2


def test_mixed_bfloat16():
    layer = block(dtype="mixed_bfloat16")
    output = layer(checks.random(2, 9, WIDTH), training=True)
    assert output.dtype == "bfloat16"
    assert {weight.dtype for weight in layer.trainable_variables} == {"float32"}
    routing = layer.attention.head_groups[1]
    assert routing.centroids.dtype == routing.member_sums.dtype == "float32"


def test_config():
    layer = block(
        shift_tokens=True,
        key_dim=5,
        activation="gelu",
        normalize_first=False,
        dropout=0.1,
        layer_norm_epsilon=1e-3,
        kernel_initializer="he_normal",
    )
    checks.config_makes_an_equal_layer(layer, checks.random(2, 9, WIDTH), use_causal_mask=True)


def test_config_of_the_other_options():
    encoded = checks.random(2, 5, WIDTH, seed=1)
    layer = block(
        cross_head_groups=[FullHeads(2), FullHeads(1)],
        value_dim=3,
        activation="geglu_approximate",
        layer_norm_epsilon=1e-3,
        dropout=0.1,
        attention_dropout=0.2,
        activation_dropout=0.3,
        attention_bias=False,
        feed_forward_bias=False,
        use_head_dense=True,
        feed_forward_chunk_size=4,
        remat=True,
    )
    checks.config_makes_an_equal_layer(
        layer, checks.random(2, 9, WIDTH), use_causal_mask=True, encoder_outputs=encoded
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head_groups": []}, "head_groups must be a list of at least one"),
        ({"intermediate_dim": 0}, "intermediate_dim must be a positive integer"),
        ({"key_dim": -1}, "key_dim must be a positive integer"),
        ({"activation": "nothing"}, "nothing"),
        (
            {"normalize_first": ("n", "da")},
            r"normalize_first must be True .*Received: .*\('n', 'da'\)",
        ),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        TransformerBlock(**{"head_groups": groups(), "intermediate_dim": 8, **options})


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="The 3 heads must divide the 13 features"):
        block()(checks.random(1, 5, 13))


# Stacks of blocks.


ROUTING = [{}, {"share_qk": True}, {"num_probes": 2}]


def language_model(assignment="nearest", dtype="float32", routing=ROUTING):
    """Creates a language model with one block of local and routing heads per entry of `routing`."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, WIDTH, mask_zero=True, dtype=dtype)(ids)
    for options in routing:
        heads = groups(assignment, dtype, **options)
        x = block(dtype=dtype, heads=heads, shift_tokens=True)(x, use_causal_mask=True)
    return keras.Model(ids, keras.layers.Dense(11, dtype=dtype)(x))


def scores_of(model, ids):
    """Returns the attention weights, `[blocks, batch, heads, length, length]`."""
    layers = model.layers[1:-1]
    x = layers[0](ids)
    scores = []
    for layer in layers[1:]:
        x, of_layer = layer(x, use_causal_mask=True, return_attention_scores=True)
        scores.append(of_layer)
    return np.stack(scores)


def past_is_untouched(model, starts, tolerance):
    """Returns whether logits and attended keys before each start ignore later tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 11, size=(2, 40))
    logits, attended = model(ids), scores_of(model, ids) > 0
    for start in starts:
        other = ids.copy()
        other[:, start:] = rng.integers(1, 11, size=(2, 40 - start))
        found = scores_of(model, other)[..., :start, :] > 0
        difference = checks.largest_difference(model(other)[:, :start], logits[:, :start])
        if difference > tolerance or not np.array_equal(found, attended[..., :start, :]):
            return False
    return True


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float64", 1e-12), pytest.param("float32", 1e-5, marks=pytest.mark.end_to_end)],
)
def test_no_later_token_changes_an_earlier_output(dtype, tolerance):
    model = language_model(dtype=dtype)
    assert past_is_untouched(model, (1, 17, 39), tolerance)


def test_a_later_token_changes_outputs_of_balanced_routing():
    model = language_model("balanced", "float64", routing=[{}, {"share_qk": True}])
    assert not past_is_untouched(model, [27], 1e-3)


@pytest.mark.end_to_end
def test_saving(tmp_path):
    ids = np.array([[1, 2, 3, 4, 5, 0, 0], [4, 3, 2, 1, 1, 9, 10]], "int32")
    model = language_model(routing=[{"share_qk": True}])
    checks.saves_and_loads(model, ids, tmp_path)


def trained(jit_compile):
    keras.utils.set_random_seed(5)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(19, WIDTH, mask_zero=True)(ids)
    more = [RoutingHeads(1, 3, 4, share_qk=True), RoutingHeads(2, 3, 4, assignment="balanced")]
    x = block(heads=[*groups(num_probes=2), *more], key_dim=4)(x, use_causal_mask=True)
    model = keras.Model(ids, keras.layers.Dense(19)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit_compile)
    rng = np.random.default_rng(0)
    # Tokens in a sequence are distinct: with equal scores, rounding would determine the members.
    tokens = rng.permuted(np.tile(np.arange(1, 19), (4, 1)), axis=1)
    tokens[:, 15:] = 0
    history = model.fit(tokens, tokens, batch_size=2, shuffle=False, verbose=0)
    return model, history.history["loss"][0]


@pytest.mark.end_to_end
def test_fit_compiled_and_not():
    compiled, loss = trained(True)
    plain, expected = trained(False)
    assert abs(loss - expected) < 1e-5
    for found, weight in zip(compiled.weights, plain.weights):
        # XLA draws other random members.
        if "member_samples" not in weight.path and "seed_generator" not in weight.path:
            np.testing.assert_allclose(found, weight, rtol=0, atol=1e-4, err_msg=weight.path)
    routing = plain.layers[2].attention.head_groups[1]
    # Two batches of 2 sequences of 15 tokens, 2 heads, queries and keys.
    assert np.sum(routing.member_counts) == 4 * 15 * 2 * 2
    assert routing.member_batches.numpy() == 2


def test_commitment_is_part_of_the_loss():
    x = checks.random(2, 9, WIDTH)
    inputs = keras.Input((None, WIDTH))
    heads = [RoutingHeads(2, 3, 4, commitment_weight=0.5)]
    layer = TransformerBlock(heads, 8)
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    plain = np.mean((model(x).numpy() - x) ** 2)
    layer(x, training=True)
    commitment = float(sum(layer.losses))
    assert commitment > 0.1
    assert abs(model.train_on_batch(x, x) - plain - commitment) < 1e-4


def test_attention_scores_equal_those_of_the_attention_layer():
    block = TransformerBlock([LocalHeads(1, 4), RoutingHeads(1, 2, 4)], 16, normalize_first=False)
    x = keras.random.normal([2, 10, 8], seed=1)
    output, scores = block(x, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(output, block(x, use_causal_mask=True))
    _, expected = block.attention(x, x, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(scores, expected)
    symbolic = block(keras.Input([10, 8]), return_attention_scores=True)
    assert [part.shape for part in symbolic] == [(None, 10, 8), (None, 2, 10, 10)]
