"""Training on two replicas, in one process of its own, equals training on one device."""

import json

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models.retrieval import contrastive
from tests.conftest import made_once
from tests.models import checks, test_stateful, test_training
from tests.models.retrieval import test_contrastive
from tests.models.test_training import assert_equal
from tests.processes import found_on_two_replicas

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*nothing updates")]

REPLICAS = """
import keras
from rt_keras.layers.dropout import draw_seed
from tests.models import checks, test_stateful, test_training
from tests.models.retrieval import test_contrastive

def trained(module, **options):
    with strategy.scope():
        model = module.make_model(**options)
    return module.trained(model)

found["jit"] = trained(test_training, jit_compile=True)
found["parts"] = trained(
    test_training, gradient_accumulation_steps=2, steps_per_execution=2
)
found["contrastive"] = trained(test_contrastive)

with strategy.scope():
    generator = keras.random.SeedGenerator(5)
seeds = strategy.run(tf.function(lambda: draw_seed(generator)))
found["seeds"] = [x.numpy().tolist() for x in strategy.experimental_local_results(seeds)]

def share(context):
    places = [slice(3), slice(3, 4)][context.replica_id_in_sync_group]
    rows = test_contrastive.make_embeddings(2)[places]
    return tf.ones(len(rows)), tf.constant(rows)

shares = strategy.experimental_distribute_values_from_function(share)
loss = test_contrastive.contrastive.InBatchLoss(reduction=None)
losses = strategy.run(tf.function(lambda x: loss(*x)), [shares])
found["shares"] = [x.numpy().tolist() for x in strategy.experimental_local_results(losses)]

with strategy.scope():
    model = checks.make_lm(loss_chunk_size=5, num_layers=1)
    model = test_stateful.compiled(model, jit_compile=False)
found["stateful"] = test_stateful.trained_rows(model, strategy)
"""


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """The results of two replicas."""

    def make(path):
        path.write_text(json.dumps(found_on_two_replicas(REPLICAS)))

    return json.loads(made_once(tmp_path_factory, "replicas", make).read_text())


@pytest.mark.parametrize("name", ["jit", "parts"])
def test_steps_equal_those_of_one_device(replicas, name):
    assert_equal(replicas[name], test_training.trained(test_training.make_model()))


def test_questions_are_compared_with_the_passages_of_all_replicas(replicas):
    expected = test_contrastive.trained(test_contrastive.make_model())
    assert_equal(replicas["contrastive"], expected)
    # Replicas may have unequal shares, as of the last batch of a data set.
    first, second = replicas["shares"]
    assert len(first) == 3 and len(second) == 1
    loss = contrastive.InBatchLoss(reduction=None)
    expected = loss(tf.ones(4), test_contrastive.make_embeddings(2))
    np.testing.assert_allclose([*first, *second], expected, rtol=1e-5)


def test_seeds_differ(replicas):
    first, second = replicas["seeds"]
    assert first == [5, 0] and second != first


def test_the_rows_of_a_state_stay_on_their_replica_and_losses_are_those_of_all_logits(replicas):
    model = test_stateful.compiled(checks.make_lm(num_layers=1), jit_compile=False)
    found, expected = replicas["stateful"], test_stateful.trained_rows(model, None)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    for a, b in zip(found["rows"], expected["rows"], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)
