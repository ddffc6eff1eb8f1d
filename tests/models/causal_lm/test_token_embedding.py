import keras
import numpy as np
import pytest

from rt_keras.layers import SinusoidalPositions
from rt_keras.models.causal_lm.token_embedding import RoutingTransformerEmbedding

OPTIONS = {
    "plain": {},
    "factorised": {"embedding_dim": 3},
    "positions": {"max_sequence_length": 9},
    "all": {"embedding_dim": 3, "max_sequence_length": 9, "sinusoidal_positions": True},
}


def make_layer(dtype="float32", **changes):
    """All weights, including biases, are as random as those of a trained layer."""
    keras.utils.set_random_seed(0)
    layer = RoutingTransformerEmbedding(11, 6, dtype=dtype, **changes)
    layer.build((None, None))
    rng = np.random.default_rng(0)
    for weight in layer.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def random_tokens(batch=2, length=7):
    return np.random.default_rng(1).integers(0, 11, [batch, length], dtype="int32")


def reference(layer, tokens):
    x = np.asarray(layer.token_embedding.embeddings, "float64")[tokens]
    if layer.embedding_dense is None:
        x = x * np.sqrt(layer.hidden_dim)
    else:
        x = x @ np.asarray(layer.embedding_dense.kernel) + np.asarray(layer.embedding_dense.bias)
    length = tokens.shape[1]
    if layer.max_sequence_length is not None:
        x = x + np.asarray(layer.position_embedding.position_embeddings)[:length]
    if layer.sinusoidal_positions:
        x = SinusoidalPositions(dtype="float64")(x)
    return x


@pytest.mark.parametrize("options", OPTIONS)
def test_values(options):
    layer, tokens = make_layer("float64", **OPTIONS[options]), random_tokens()
    output = layer(tokens)
    assert output.shape == (2, 7, 6) == layer.compute_output_shape((2, 7))
    # Angles are computed in float32.
    np.testing.assert_allclose(output, reference(layer, tokens), rtol=0, atol=1e-5)


def test_new_weights_make_small_logits():
    """Embeddings have unit variance, so that tied weights give logits of unit variance."""
    keras.utils.set_random_seed(0)
    layer = RoutingTransformerEmbedding(1000, 64)
    x = np.asarray(layer(np.arange(1000)[None]))
    assert abs(x.std() - 1) < 0.02
    np.testing.assert_allclose(np.asarray(layer.token_embedding.embeddings).std(), 1 / 8, rtol=0.02)


def test_dropout_in_training_only():
    tokens = random_tokens(4, 9)
    layer = make_layer(embedding_dropout=0.5)
    np.testing.assert_array_equal(layer(tokens), layer(tokens, training=False))
    dropped = np.asarray(layer(tokens, training=True))
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(dropped[kept], 2 * np.asarray(layer(tokens))[kept], rtol=1e-5)


def test_token_dropout_forgets_whole_tokens():
    tokens = random_tokens(4, 9)
    layer = make_layer(token_dropout=0.5)
    rows, forgotten = np.asarray(layer(tokens)), np.asarray(layer(np.zeros([1, 1], "int32")))
    found = np.asarray(layer(tokens, training=True))
    is_kept, is_forgotten = (found == rows).all(-1), (found == forgotten).all(-1)
    assert (is_kept | is_forgotten).all()
    assert not is_kept.all() and not is_forgotten.all()
    np.testing.assert_array_equal(layer(tokens, training=False), rows)
