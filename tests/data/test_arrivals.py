import numpy as np
import pytest

from rt_keras.data.arrivals import seconds_waited


@pytest.mark.parametrize("seed", range(4))
def test_the_waiting_is_that_of_steps_of_one_length(seed):
    rng = np.random.default_rng(seed)
    # A negative delay: the batch arrived before its step.
    delays, step = rng.uniform(-2, 2, 1 + seed), rng.uniform(0.1, 3)
    arrivals, now = [], 100.0
    for delay in delays:
        arrivals.append(now + delay)
        now = max(now, arrivals[-1]) + step
    wanted = sum(max(delay, 0) for delay in delays)
    np.testing.assert_allclose(seconds_waited(100.0, now, arrivals), wanted, atol=1e-9)
