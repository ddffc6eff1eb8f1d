import json
from pathlib import Path

import keras
import pytest

from rt_keras.training.config import load_config
from rt_keras.training.experiment import make_optimizer
from rt_keras.training.schedule import SCHEDULES, make_schedule


def rates(name, warmup_steps=10, **kwargs):
    schedule = make_schedule(name, 2.0, warmup_steps, steps=100, **kwargs)
    return [float(schedule(step)) for step in range(101)]


def test_warm_up_rises_linearly_to_the_peak():
    for name in ("constant", "cosine"):
        assert rates(name)[:11] == pytest.approx([0.2 * step for step in range(11)])
    # The inverse square root counts from one.
    assert rates("inverse_sqrt")[:10] == pytest.approx([0.2 * step for step in range(1, 11)])


def test_after_the_warm_up():
    assert rates("constant")[10:] == pytest.approx([2.0] * 91)
    held = rates("held_inverse_sqrt")
    assert held[:11] == pytest.approx([2.0] * 11) and held[40] == pytest.approx(1.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_starts_at_the_peak_without_warm_up_and_an_optimizer_keeps_it_when_saved(name):
    assert max(rates(name, warmup_steps=0)[:2]) == pytest.approx(2.0)
    optimizer = keras.optimizers.Adam(make_schedule(name, 2.0, 10, steps=100))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert float(again._learning_rate(40)) == float(optimizer._learning_rate(40))


# Learning rates that Tensor2Tensor computed for the models of the paper's authors.
PUBLISHED = json.loads((Path(__file__).parents[1] / "golden" / "t2t_hparams.json").read_text())


@pytest.mark.slow
def test_published_configurations_have_the_learning_rates_of_tensor2tensor():
    for name, published in PUBLISHED.items():
        config = load_config(name)
        optimizer = make_optimizer(config)
        expected = published["learning_rate_at"]
        found = [float(optimizer._learning_rate(int(step))) for step in expected]
        assert found == pytest.approx(list(expected.values()), rel=1e-6), name
        hparams = published["hparams"]
        assert config.optimizer.name == hparams.get("optimizer", "adafactor"), name
        assert config.optimizer.l2_weight == hparams.get("weight_decay", 0.0), name
        assert (config.centroids.update, config.centroids.decay) == ("count", 0.999), name
