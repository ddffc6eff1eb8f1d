import numpy as np
import pytest
import tensorflow as tf

from rt_keras.training import batches
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment


class Workers:
    """Runs the workers of a strategy one after the other, each with two replicas."""

    def __init__(self, count):
        self.count, self.num_replicas_in_sync = count, 2 * count

    def distribute_datasets_from_function(self, dataset_fn):
        contexts = [
            tf.distribute.InputContext(self.count, number, self.num_replicas_in_sync)
            for number in range(self.count)
        ]
        return [dataset_fn(context) for context in contexts]


@pytest.fixture(scope="module")
def experiment(tiny_settings):
    return Experiment(make_config({**tiny_settings, "data.batch_size": 4}))


@pytest.mark.parametrize("count", [1, 2])
def test_workers_and_replicas_share_each_batch(experiment, count):
    whole = batches.training_batches(experiment, tf.distribute.get_strategy(), 3)
    expected = next(iter(whole))[0]["token_ids"]
    shares = batches.training_batches(experiment, Workers(count), 3)
    found = [inputs["token_ids"] for share in shares for inputs, _, _ in share.take(2)][: 2 * count]
    assert {x.shape[0] for x in found} == {4 // (2 * count)}
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.slow
def test_validation_of_a_stateful_model_has_longer_sequences(tiny_settings):
    settings = {**tiny_settings, "data.batch_size": 4, "trainer.stateful": True}
    experiment = Experiment(make_config(settings))
    for strategy, rows in ((tf.distribute.get_strategy(), 1), (Workers(1), 2)):
        found, _ = batches.validation_batches(experiment, None, strategy)
        first = next(iter(found if rows == 1 else found[0]))[1]
        assert first.shape == [1, 4 * experiment.data.sequence_length // rows]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_each_prediction_of_a_validation_counts_once(experiment, count):
    default = tf.distribute.get_strategy()
    whole, number = batches.validation_batches(experiment, None, default)
    assert number == experiment.trainer.validation_batches == len(list(whole))
    shares, _ = batches.validation_batches(experiment, None, Workers(count))
    labels = [np.concatenate([y for _, y, _ in share]) for share in shares]
    expected = np.concatenate([y for _, y, _ in whole])
    assert sorted(map(tuple, np.concatenate(labels))) == sorted(map(tuple, expected))
