import subprocess
import sys

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
