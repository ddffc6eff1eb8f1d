import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import layers, models
from rt_keras.data import ByteTokenizer
from rt_keras.models.retrieval import contrastive
from tests.models import checks
from tests.models.test_training import logs_of
from tests.retrieval.made import make_retriever

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

BATCH = 4


def make_embeddings(passages, batch=BATCH):
    rng = np.random.default_rng(passages)
    return rng.normal(size=[batch, 1 + passages, 3]).astype("float32")


def loss_in_a_loop(real, embeddings, weights):
    """The loss of each question, and the gradient of their weighted sum, one by one."""
    losses, gradient = [], np.zeros(embeddings.shape)
    batch, texts, _ = embeddings.shape
    for i in range(batch):
        others = [(k, j) for k in range(batch) if real[k] for j in range(1, texts)]
        scores = np.array([embeddings[i, 0] @ embeddings[place] for place in others], "float64")
        if not real[i]:
            losses.append(np.nan)
            continue
        shares = np.exp(scores) / np.exp(scores).sum()
        losses.append(-np.log(shares[others.index((i, 1))]))
        for place, share in zip(others, shares):
            pull = weights[i] * (share - (place == (i, 1)))
            gradient[i, 0] += pull * embeddings[place]
            gradient[place] += pull * embeddings[i, 0]
    return np.array(losses), gradient


@pytest.mark.parametrize(
    ("passages", "real"), [(3, [1, 1, 1, 1]), (1, [1, 0, 1, 1]), (3, [0, 1, 1, 0])]
)
def test_the_loss_and_its_gradient_are_those_of_a_loop(passages, real):
    embeddings, weights = make_embeddings(passages), np.array([1.0, 2.0, 0.5, 3.0]) * real
    labels, y_pred = tf.constant(real), tf.constant(embeddings)
    with tf.GradientTape() as tape:
        tape.watch(y_pred)
        found = contrastive.InBatchLoss(reduction=None)(labels, y_pred)
        weighted = contrastive.InBatchLoss(reduction="sum")(labels, y_pred, weights)
    losses, gradient = loss_in_a_loop(real, embeddings, weights)
    rows = np.flatnonzero(real)
    np.testing.assert_allclose(found.numpy()[rows], losses[rows], rtol=1e-5)
    np.testing.assert_allclose(weighted, (losses * weights)[rows].sum(), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(weighted, y_pred), gradient, atol=1e-5)


def test_a_question_is_found_if_its_own_passage_scores_highest():
    embeddings = make_embeddings(3)
    # The passage of the first question is its best; that of the last is worse than another's.
    embeddings[0, 1] = 10 * embeddings[0, 0]
    embeddings[2, 1] = 10 * embeddings[3, 0]
    found = contrastive.found_in_batch(tf.ones([BATCH], tf.int32), embeddings)
    passages = embeddings[:, 1:].reshape([-1, 3])
    best = [np.argmax(passages @ embeddings[i, 0]) for i in range(BATCH)]
    assert found.numpy().tolist() == [float(best[i] == 3 * i) for i in range(BATCH)]
    assert found.numpy()[[0, 3]].tolist() == [1, 0] and found.dtype == tf.float32
    # A passage of padding is not compared.
    embeddings[1, 1] = 99 * embeddings[0, 0]
    found = contrastive.found_in_batch(tf.constant([1, 0, 1, 1]), embeddings)
    assert found.numpy()[0] == 1


def test_passages_follow_their_question_and_are_truncated_apart():
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 6)
    passages = tf.constant([["a", "bcdefgh"], ["", "e"]])
    found = contrastive.pair_inputs(preprocessor, tf.constant(["abcde", "x"]), passages, 4)
    assert found["question"]["token_ids"].numpy().tolist() == [[1, 99, 100, 1], [1, 122, 1, 0]]
    assert found["passages"]["token_ids"].shape == (2, 2, 6)
    for name, values in found["passages"].items():
        for i in range(2):
            for j in range(2):
                np.testing.assert_array_equal(values[i, j], preprocessor(passages[i, j])[name])
    model = make_retriever()
    x, y = model.preprocess_samples({"question": tf.constant(["a", "b"]), "passages": passages})
    assert x["question"]["token_ids"].shape[0] == 2 and y.numpy().tolist() == [1, 1]


# === Training ===

PASSAGES = 2


def make_model(jit_compile=False, commitment_weight=0.0, **options):
    """A model whose gradients are clipped at every step."""
    groups = [
        layers.LocalHeads(1, 4),
        layers.RoutingHeads(1, 3, 4, commitment_weight=commitment_weight),
    ]
    backbone = checks.make_backbone(
        cls=models.RoutingTransformerEncoderBackbone, num_layers=1, head_groups=groups
    )
    model = models.RoutingTransformerTextEmbedder(backbone, projection_dim=4, temperature=0.2)
    model.compile(
        keras.optimizers.SGD(0.3, global_clipnorm=0.5),
        weighted_metrics=[keras.metrics.MeanMetricWrapper(contrastive.found_in_batch, "found")],
        jit_compile=jit_compile,
        **options,
    )
    return model


def make_batch():
    tokens = checks.random_tokens(BATCH * (1 + PASSAGES), 8)
    lengths = np.random.default_rng(1).integers(3, 9, len(tokens))
    texts = checks.inputs(tokens, lengths)
    return {
        "question": {name: x[:BATCH] for name, x in texts.items()},
        "passages": {name: x[BATCH:].reshape([BATCH, PASSAGES, 8]) for name, x in texts.items()},
    }


def trained(model, real=(1, 1, 0, 1)):
    labels = np.array(real, "int32")
    return logs_of(model, make_batch(), labels, labels.astype("float32"))


@pytest.fixture(scope="module")
def whole():
    """The results of one device with the whole batch."""
    return trained(make_model())


@pytest.mark.slow
def test_a_step_learns_and_its_loss_is_that_of_the_embeddings(whole):
    losses = whole["history"]["val_loss"]
    assert losses[2] < losses[0] and whole["norm"] > 0
    model = make_model(run_eagerly=True)
    embeddings = np.asarray(model(make_batch()))
    assert embeddings.shape == (BATCH, 1 + PASSAGES, 4)
    # A question is divided by the temperature.
    lengths = np.linalg.norm(embeddings, axis=-1)
    np.testing.assert_allclose(lengths, [[5.0, 1.0, 1.0]] * BATCH, rtol=1e-5)
    losses, _ = loss_in_a_loop([1, 1, 0, 1], embeddings, np.ones(BATCH))
    assert whole["history"]["loss"][0] == pytest.approx(np.nansum(losses) / BATCH, rel=1e-4)


@pytest.mark.slow
def test_losses_of_layers_are_added():
    batch, labels = make_batch(), np.ones(BATCH, "int32")
    plain, added = (make_model(commitment_weight=x) for x in (0.0, 1.0))
    expected = plain.test_on_batch(batch, labels, return_dict=True)["loss"]
    added(batch, training=True)
    extra = float(sum(added.losses))
    found = added.train_on_batch(batch, labels, return_dict=True)["loss"]
    assert extra > 0.01 and found == pytest.approx(expected + extra, rel=1e-3)
