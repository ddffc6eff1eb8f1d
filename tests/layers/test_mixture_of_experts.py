import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FeedForward, LocalHeads, MixtureOfExperts, TransformerBlock
from rt_keras.layers.mixture_of_experts import expert_use
from tests.layers import checks

WIDTH = 6


def make_layer(experts=3, per_token=2, **options):
    keras.utils.set_random_seed(0)
    options = {"capacity_factor": None, **options}
    layer = MixtureOfExperts(experts, 5, per_token, kernel_initializer="he_normal", **options)
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(3)
    for weight in layer.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return layer


def expert_of(layer, number):
    """Returns a `FeedForward` with the weights of one expert."""
    names = ("inner_kernel", "inner_bias", "output_kernel", "output_bias")
    dense = FeedForward(5, layer.activation, use_bias=layer.use_bias)
    dense.build((None, None, WIDTH))
    dense.set_weights(
        [getattr(layer, n).numpy()[number] for n in names if getattr(layer, n) is not None]
    )
    return dense


def by_loop(layer, x, mask=None, capacity=None):
    """Computes one choice after the other: first choices of all positions, then second."""
    x = x.reshape(-1, WIDTH)
    mask = np.ones(len(x), bool) if mask is None else mask.reshape(-1)
    logits = x @ layer.router_kernel.numpy()
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    best = np.argsort(-shares, axis=1)[:, : layer.experts_per_token]
    output, taken, lost = np.zeros_like(x), np.zeros(layer.num_experts), 0
    for choice in range(layer.experts_per_token):
        for i in np.flatnonzero(mask):
            expert = best[i, choice]
            if capacity is not None and taken[expert] >= capacity:
                lost += 1
                continue
            taken[expert] += 1
            gate = shares[i, expert]
            if layer.experts_per_token > 1:
                gate /= shares[i, best[i]].sum()
            output[i] += gate * expert_of(layer, expert)(x[None, i : i + 1]).numpy()[0, 0]
    first = np.bincount(best[mask, 0], minlength=layer.num_experts) / mask.sum()
    loss = layer.num_experts * np.sum(first * shares[mask].mean(axis=0))
    return output, np.append(taken, lost), loss


@pytest.mark.parametrize("per_token", [1, 2])
@pytest.mark.parametrize("options", [{}, {"activation": "relu", "use_bias": False}], ids=str)
def test_equation(per_token, options):
    layer, x = make_layer(per_token=per_token, **options), checks.random(2, 7, WIDTH)
    expected, _, _ = by_loop(layer, x)
    checks.close(layer(x), expected.reshape(x.shape), 2e-6)
    checks.config_makes_an_equal_layer(layer, x)


@pytest.mark.parametrize("per_token, capacity_factor", [(1, 1.0), (2, 1.2)])
def test_experts_process_up_to_their_capacity(per_token, capacity_factor):
    layer = make_layer(per_token=per_token, capacity_factor=capacity_factor)
    x, mask = checks.random(2, 9, WIDTH), checks.padding(2, 9)
    capacity = np.ceil(capacity_factor * per_token * 18 / 3)
    expected, taken, loss = by_loop(layer, x, mask, capacity)
    found = layer(x, mask=tf.constant(mask), training=True)
    checks.close(found, expected.reshape(x.shape), 2e-6)
    np.testing.assert_allclose(layer.expert_shares, taken / taken.sum(), rtol=1e-6)
    np.testing.assert_allclose(layer.losses[0], 0.01 * loss, rtol=1e-5)
    # In inference, each position is computed separately.
    expected, _, _ = by_loop(layer, x, mask)
    found = layer(x, mask=tf.constant(mask))
    checks.close(found, expected.reshape(x.shape), 2e-6)


def test_gradients_equal_those_of_all_experts_weighted():
    layer, x = make_layer(per_token=1), checks.random(1, 150, WIDTH)

    def of_all(x):
        shares = tf.nn.softmax(tf.matmul(x, layer.router_kernel.value))
        best = tf.one_hot(tf.argmax(shares, axis=-1), 3)
        x = x[..., None, :]
        inner = tf.einsum("bnew,ewf->bnef", tf.repeat(x, 3, axis=2), layer.inner_kernel.value)
        inner, gate = tf.split(inner + layer.inner_bias.value, 2, axis=-1)
        inner = tf.nn.gelu(inner) * gate
        found = tf.einsum("bnef,efw->bnew", inner, layer.output_kernel.value)
        found += layer.output_bias.value
        return tf.einsum("bne,bnew->bnw", shares * best, found)

    sources = [weight.value for weight in layer.trainable_weights]
    x = tf.constant(x)
    gradients = []
    for function in (layer, of_all):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(function(x)))
        gradients.append(tape.gradient(loss, [*sources, x]))
    for found, expected in zip(*gradients):
        found = tf.convert_to_tensor(found)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_every_weight_trains_and_xla_compiles_it():
    layer, x = make_layer(capacity_factor=1.25, dropout=0.1), checks.random(2, 70, WIDTH)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(layer(x, training=True))) + layer.losses[0]
    weights = [weight.value for weight in layer.trainable_weights]
    for gradient in tape.gradient(loss, weights):
        assert np.any(tf.convert_to_tensor(gradient))
    expected = layer(x)
    found = tf.function(layer, jit_compile=True)(x)
    checks.close(found, expected, 2e-6)


def test_bfloat16():
    layer = MixtureOfExperts(3, 5, dtype="mixed_bfloat16")
    assert layer(checks.random(1, 4, WIDTH)).dtype == "bfloat16"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_experts": 0}, "num_experts must be a positive integer"),
        ({"experts_per_token": 4}, "at most num_experts, 3. Received: experts_per_token=4"),
        ({"capacity_factor": 0.5}, "capacity_factor must be at least 1"),
        ({"balance_weight": -1.0}, "balance_weight must be at least 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        MixtureOfExperts(**{"num_experts": 3, "intermediate_dim": 4, **options})


def make_block(**options):
    return TransformerBlock([LocalHeads(2, 4)], 16, num_experts=3, **options)


def test_blocks():
    block, x = make_block(), checks.random(2, 9, 8)
    expected = block(x, use_causal_mask=True)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    _, cache = block.prefill(x[:, :5], count=5, max_length=9)
    output, _ = block.call_with_cache(x[:, 5:], cache, 5)
    np.testing.assert_allclose(output, expected[:, 5:], rtol=0, atol=1e-5)
    model = keras.Sequential([keras.Input([9, 8]), block])
    assert expert_use(model) == {"experts_0_busiest": 0, "experts_0_full": 0}
    block(x, use_causal_mask=True, training=True)
    assert 1 / 3 <= expert_use(model)["experts_0_busiest"] <= 1
    with pytest.raises(ValueError, match="cannot be combined.*feed_forward_chunk_size=4"):
        make_block(feed_forward_chunk_size=4)


def test_padding_uses_no_expert():
    block, x = make_block(expert_capacity_factor=1.0), checks.random(1, 9, 8)
    mask = np.arange(9)[None] < 4
    block(x, padding_mask=mask, use_causal_mask=True, training=True)
    shares = block.feed_forward.expert_shares.numpy()
    # 4 positions with 2 choices each.
    np.testing.assert_allclose(8 * shares, np.round(8 * shares), atol=1e-5)
