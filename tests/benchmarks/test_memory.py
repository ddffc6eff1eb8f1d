import subprocess
import sys

import pytest

SCRIPT = """
from rt_keras.benchmarks.memory import resident_peak
before = resident_peak()
large = bytearray(b"1") * 10**8
held = resident_peak()
del large
print(before, held, resident_peak())
"""


def test_the_peak_grows_with_what_is_held_and_stays_when_that_is_gone():
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True).stdout
    before, held, after = map(int, output.split())
    assert abs(held - before - 10**8) < 10**7
    assert abs(after - held) < 10**7


LATER = """
from rt_keras.benchmarks.memory import resident, resident_peak
large = bytearray(b"1") * 10**8
peak, held = resident_peak(), resident()
del large
print(peak, held, resident(), resident_peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets the peak")
def test_what_is_held_now_is_told_and_the_peak_forgotten():
    output = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True).stdout
    peak, held, after, later = map(int, output.split())
    assert abs(peak - held) < 10**7
    assert abs(held - after - 10**8) < 10**7
    # The peak stays if the system does not allow a reset.
    assert abs(later - after) < 10**7 or later == peak
