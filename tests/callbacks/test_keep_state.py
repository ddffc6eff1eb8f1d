import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_state import KeepState
from rt_keras.layers import LocalRoutingHeads, MultiHeadAttention


class Steps(keras.callbacks.Callback):
    """Records the steps of the checkpoints, and stops at one."""

    def __init__(self, keep_state, stop_at=None):
        super().__init__()
        self.keep_state, self.stop_at, self.values = keep_state, stop_at, {"epochs": 0}

    def on_train_batch_end(self, batch, logs=None):
        if self.keep_state.step == self.stop_at:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
        self.values["epochs"] += 1


def make_model(optimizer="adam"):
    """A model whose training draws random numbers at every step."""
    keras.utils.set_random_seed(0)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        heads = LocalRoutingHeads(2, block_size=2, num_clusters=3, window_size=2)
        inputs = keras.Input([8, 4])
        x = keras.layers.Dropout(0.2)(inputs)
        x = MultiHeadAttention([heads], key_dim=4, dropout=0.1)(x, x, use_causal_mask=True)
        model = keras.Model(inputs, x)
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def batches(first=0):
    x = np.random.default_rng(0).normal(size=[24, 8, 4]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x)).batch(2).repeat().skip(first)


def fit(folder, first_step=0, stop_at=None, epochs=((0, 2, 6),), model=None):
    """Trains 2 epochs of 6 steps; returns the checkpoints and the histories of the parts."""
    model = model or make_model()
    ema = CentroidEMA(restart_after=1)
    checkpoints = Checkpoints(folder, max_to_keep=100)
    counted = Steps(None)
    keep_state = KeepState(checkpoints, 2, callbacks=[ema, counted], first_step=first_step)
    stop, histories = Steps(keep_state, stop_at), []
    counted.keep_state = keep_state
    try:
        step = first_step
        for initial_epoch, end, steps in epochs:
            parts = {"initial_epoch": initial_epoch, "epochs": end, "steps_per_epoch": steps}
            callbacks = [ema, counted, keep_state, stop]
            fitted = model.fit(batches(step), verbose=0, callbacks=callbacks, **parts)
            histories.append(fitted.history)
            step += steps
    finally:
        keep_state.wait()
    return checkpoints, histories


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    return fit(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_checkpoints_are_written_on_time_before_the_last_step_and_after_it(whole):
    steps = sorted(int(path.stem) for path in whole[0].folder.glob("*.json"))
    assert steps == [0, 2, 4, 5, 6, 8, 10, 11, 12]


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop_at, kept, epochs", [(3, 2, [(0, 1, 4), (1, 2, 6)]), (6, 5, [(0, 1, 1), (1, 2, 6)])]
)
def test_a_run_that_goes_on_computes_the_same_bits_and_logs_whole_epochs(
    whole, tmp_path, stop_at, kept, epochs
):
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, stop_at=stop_at)
    step, _ = Checkpoints(tmp_path).newest()
    assert step == kept
    checkpoints, histories = fit(tmp_path, step, epochs=epochs)
    (expected, values), (found, values_found) = (x.read(12) for x in (whole[0], checkpoints))
    assert values == values_found
    assert values == {"callbacks": {"Steps": {"epochs": 2}}, "between_epochs": True}
    assert len(found) > 30
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    # The interrupted epoch has the losses, metrics and cluster use of a complete one.
    for name, values in whole[1][0].items():
        assert [x for history in histories for x in history[name]] == values[-len(epochs) :]


def test_a_checkpoint_of_another_model_is_refused(whole):
    with pytest.raises(
        ValueError, match="belongs to another model: .* has shape .* there, .* here"
    ):
        fit(whole[0].folder, 12, epochs=[(2, 3, 6)], model=make_model("sgd"))


def small_model():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_checkpoint_that_cannot_be_written_is_reported_and_training_goes_on(
    tmp_path, monkeypatch, capsys
):
    write = Checkpoints.write

    def fail_at_first(self, step, *arguments):
        if step == 4:
            raise OSError("the disk is full")
        write(self, step, *arguments)

    monkeypatch.setattr(Checkpoints, "write", fail_at_first)
    keep_state, x = KeepState(Checkpoints(tmp_path), 2), np.ones([12, 1], "float32")
    small_model().fit(x, x, batch_size=2, verbose=0, callbacks=[keep_state])
    keep_state.wait()
    assert capsys.readouterr().out == "the disk is full; training continues\n"
    assert keep_state.checkpoints.newest()[0] == 6


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    may_end, ends = threading.Event(), []

    def write(self, step, arrays, values):
        assert may_end.wait(60)
        ends.append((step, arrays["model_0"].numpy()))

    monkeypatch.setattr(Checkpoints, "write", write)
    model = small_model()
    start = model.get_weights()[0]
    keep_state = KeepState(Checkpoints(tmp_path), 100)
    release = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: may_end.set() if batch == 2 else None
    )
    x = np.ones([8, 1], "float32")
    model.fit(x, x, batch_size=2, verbose=0, callbacks=[release, keep_state])
    keep_state.wait()
    assert [step for step, _ in ends] == [0, 3, 4]
    # The checkpoint holds the state of its step, although the model has since changed.
    np.testing.assert_array_equal(ends[0][1], start)
    assert keep_state.saved_step == 4


def test_minutes_bring_a_checkpoint_sooner(tmp_path, monkeypatch):
    clock = iter(range(0, 6000, 40))
    monkeypatch.setattr("rt_keras.callbacks.keep_state.time.monotonic", lambda: next(clock))
    steps = []
    monkeypatch.setattr(Checkpoints, "write", lambda self, step, *_: steps.append(step))
    keep_state = KeepState(Checkpoints(tmp_path), 100, save_minutes=1)
    x = np.ones([12, 1], "float32")
    small_model().fit(x, x, batch_size=1, verbose=0, callbacks=[keep_state])
    keep_state.wait()
    assert steps == [0, 2, 4, 6, 8, 10, 11, 12]
