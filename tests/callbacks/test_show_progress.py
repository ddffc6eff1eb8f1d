import itertools
import re

import keras
import numpy as np
import pytest

from rt_keras.callbacks.measure_speed import MeasureSpeed
from rt_keras.callbacks.show_progress import ShowProgress


def fit(
    seen, epochs=2, first_step=0, steps_per_execution=1, line_seconds=None, clock=None, **options
):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution, run_eagerly=False)
    speed = MeasureSpeed(10, first_step)
    shown = ShowProgress(lambda **fields: seen.append(fields), 6, speed, line_seconds)
    if clock is not None:
        shown.clock = clock
    data = np.ones([6, 1]), np.zeros([6, 1])
    model.fit(*data, batch_size=2, epochs=epochs, verbose=0, callbacks=[speed, shown], **options)


def test_the_bar_counts_the_steps_of_all_epochs():
    seen = []
    fit(seen, validation_data=(np.ones([2, 1]), np.zeros([2, 1])))
    steps = [fields["completed"] for fields in seen if "completed" in fields]
    assert steps == [1, 2, 3, 4, 5, 6]
    descriptions = [fields["description"] for fields in seen]
    assert descriptions == (["training"] * 3 + ["validating"]) * 2
    assert re.fullmatch(r"loss \d\.\d{4}", seen[0]["note"])
    assert re.fullmatch(r"loss \d\.\d{4}, [\d,]+ tokens/s", seen[1]["note"])


def test_each_epoch_ends_with_a_line(capsys):
    fit([], validation_data=(np.ones([2, 1]), np.zeros([2, 1])))
    first, last = capsys.readouterr().out.splitlines()
    loss = r"loss \d\.\d{4}, validation loss \d\.\d{4}, [\d,]+ tokens/s"
    assert re.fullmatch(rf"step 3 of 6: {loss}, 0:00:0\d left", first)
    assert re.fullmatch(rf"step 6 of 6: {loss}", last)


def test_lines_have_the_value_of_validation_that_is_monitored(capsys):
    update, values = lambda **fields: None, {"loss": 1.0, "val_loss": 2.0, "val_nats_per_text": 3.0}
    shown = ShowProgress(update, 1, MeasureSpeed(10), monitor="val_nats_per_text")
    shown.speed.step, shown.start = 1, (0, 0.0)
    shown.on_epoch_end(0, values)
    line = capsys.readouterr().out
    assert line.startswith("step 1 of 1: loss 1.0000, validation nats per text 3.0000")


def test_lines_between_validations_come_after_their_seconds(capsys):
    # Each reading of the clock is 25 s after the previous one; some steps read it twice.
    seconds = itertools.count(0, 25)
    fit([], line_seconds=60, clock=lambda: next(seconds))
    lines = capsys.readouterr().out.splitlines()
    steps = [int(re.match(r"step (\d) of 6: loss \d\.\d{4}", line)[1]) for line in lines]
    assert steps == sorted(steps) and 3 in steps and steps[-1] == 6
    assert 2 < len(steps) < 6
    between = next(line for line in lines if line.startswith("step 2"))
    assert re.fullmatch(r"step 2 of 6: loss [\d.]{6}, [\d,]+ tokens/s, [\d:]+ left", between)


@pytest.mark.parametrize("line_seconds, count", [(0, 6), (3600, 2), (None, 2)])
def test_validations_have_the_only_line_of_their_step(capsys, line_seconds, count):
    fit([], line_seconds=line_seconds)
    steps = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(steps) == count == len(set(steps))


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_a_run_that_is_continued_counts_from_its_first_step(capsys, steps_per_execution):
    seen = []
    fit(seen, epochs=1, first_step=3, steps_per_execution=steps_per_execution)
    assert seen[-1]["completed"] == 6
    assert capsys.readouterr().out.startswith("step 6 of 6: loss ")
