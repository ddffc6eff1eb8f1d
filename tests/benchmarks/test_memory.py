import pytest

from rt_keras.benchmarks import memory

HOLDER = """
import sys
large = bytearray(b"1") * 10**8  # held by the import, which does not count


def prepare(megabytes, message=None):
    def run():
        if message:
            sys.exit(message)
        return len(bytearray(b"1") * (megabytes * 10**6))

    return run
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A module that holds 100 MB once imported, and more when it runs."""
    (tmp_path / "holder.py").write_text(HOLDER)
    path = [str(tmp_path), *memory.os.environ.get("PYTHONPATH", "").split(memory.os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", memory.os.pathsep.join(filter(None, path)))
    return "holder"


def test_the_peak_is_that_of_the_call_alone(holder):
    parent = bytearray(b"1") * (3 * 10**8)
    assert memory.resident_peak() > len(parent)
    for megabytes in (50, 200):
        peak = memory.peak_above_imports(holder, {"megabytes": megabytes})
        assert abs(peak / 1e6 - megabytes) < 10


def test_a_process_that_fails_says_why(holder):
    with pytest.raises(RuntimeError, match="^no room$"):
        memory.peak_above_imports(holder, {"megabytes": 1, "message": "no room"})
