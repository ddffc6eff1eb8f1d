import re

import keras
import numpy as np

from rt_keras.callbacks.measure_speed import MeasureSpeed
from rt_keras.callbacks.show_progress import ShowProgress


def test_the_bar_counts_the_steps_of_all_epochs_and_each_ends_with_a_line(capsys):
    seen = []
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    speed = MeasureSpeed(10)
    shown = ShowProgress(lambda **fields: seen.append(fields), 6, speed)
    data = np.ones([6, 1]), np.zeros([6, 1])
    fitting = {"batch_size": 2, "epochs": 2, "verbose": 0, "callbacks": [speed, shown]}
    model.fit(*data, validation_data=data, **fitting)
    assert [fields["completed"] for fields in seen if "completed" in fields] == list(range(1, 7))
    first, last = capsys.readouterr().out.splitlines()
    loss = r"loss \d\.\d{4}, validation loss \d\.\d{4}, [\d,]+ tokens/s"
    assert re.fullmatch(rf"step 3 of 6: {loss}, 0:00:0\d left", first)
    assert re.fullmatch(rf"step 6 of 6: {loss}", last)
