import re

from rt_keras.benchmarks import machine


def test_the_machine_is_described_in_words_without_names_of_its_own():
    words = machine.describe()
    assert re.match(r"\d+ cores of \S.*, \d+ GB of memory, .*Python 3\.\d+\.\d+, TensorFlow", words)
    assert machine.platform.node() not in words.split()
