"""Learning rate schedules."""

import keras
from keras import ops

from rt_keras.arguments import one_of, wrong_value

SCHEDULES = ("constant", "cosine", "inverse_sqrt", "held_inverse_sqrt")


def make_schedule(name, peak, warmup_steps, steps, final_fraction=0.0):
    """Creates a learning rate schedule with linear warm-up from 0.

    Args:
        name: string. `"constant"` stays at the peak. `"cosine"` decays along half a cosine to
            `final_fraction * peak` at the last step. `"inverse_sqrt"` decays as `1 / sqrt(step)`.
            `"held_inverse_sqrt"` also does, but holds the peak for `warmup_steps` steps instead of
            warming up.
        peak: float, the highest learning rate.
        warmup_steps: int, the number of warm-up steps.
        steps: int, the number of steps of the whole run. Only `"cosine"` uses it.
        final_fraction: float, the final value of `"cosine"`, as a fraction of the peak. Defaults to
            0.0.

    Returns:
        A `keras.optimizers.schedules.LearningRateSchedule`.

    Raises:
        ValueError: if `name` is unknown.

    >>> schedule = make_schedule("cosine", peak=1.0, warmup_steps=10, steps=110, final_fraction=0.5)
    >>> [round(float(schedule(step)), 2) for step in (5, 10, 60, 110)]
    [0.5, 1.0, 0.75, 0.5]
    """
    schedules = keras.optimizers.schedules
    if name == "cosine":
        return schedules.CosineDecay(
            initial_learning_rate=0.0 if warmup_steps else peak,
            decay_steps=max(steps - warmup_steps, 1),
            alpha=final_fraction,
            warmup_target=peak if warmup_steps else None,
            warmup_steps=warmup_steps,
        )
    if name in ("inverse_sqrt", "held_inverse_sqrt"):
        return InverseSquareRoot(peak, warmup_steps, hold=name == "held_inverse_sqrt")
    if name == "constant":
        return schedules.PolynomialDecay(
            initial_learning_rate=0.0 if warmup_steps else peak,
            decay_steps=max(warmup_steps, 1),
            end_learning_rate=peak,
        )
    raise wrong_value("name", one_of(*SCHEDULES).text, name)


@keras.saving.register_keras_serializable(package="rt_keras")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up, then decay with the inverse square root of the step.

    ```
    peak * min(t / warmup_steps, sqrt(warmup_steps / t)),    t = step + 1     linear warm-up
    peak * min(1, sqrt(warmup_steps / t)),                   t = step         with `hold`
    ```

    The first is the schedule of "Attention Is All You Need", section 5.3, where the peak is
    (dim * warmup_steps)^-0.5. The second is the schedule of the Adafactor authors. Both count steps
    like Tensor2Tensor.

    Args:
        peak: float, the highest learning rate.
        warmup_steps: int, the number of steps before the decay; 0 counts as 1.
        hold: bool, whether to hold the peak before the decay instead of warming up. Defaults to
            False.

    >>> schedule = InverseSquareRoot(peak=1.0, warmup_steps=100)
    >>> [round(float(schedule(step)), 2) for step in (49, 99, 399)]
    [0.5, 1.0, 0.5]
    """

    def __init__(self, peak, warmup_steps, hold=False):
        super().__init__()
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.hold = hold

    def __call__(self, step):
        warmup = ops.cast(max(self.warmup_steps, 1), "float32")
        step = ops.maximum(ops.cast(step, "float32"), 0.0)
        if self.hold:
            return self.peak * ops.sqrt(warmup / ops.maximum(step, warmup))
        step += 1.0
        return self.peak * ops.minimum(step / warmup, ops.sqrt(warmup / step))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "hold": self.hold}
