import pytest

from rt_keras.benchmarks import repetition
from tests.benchmarks.checks import parse


@pytest.mark.weekly
def test_a_memory_keeps_more_than_a_query_sees(monkeypatch, capsys):
    sizes = {"PASSAGE": 12, "TRAINED_LENGTH": 64, "CHUNK": 32, "BLOCK_SIZE": 8, "VOCABULARY": 32}
    for name, size in sizes.items():
        monkeypatch.setattr(repetition, name, size)

    def untrained(kind, settings):
        return repetition.build(kind, settings, 64).get_weights()

    monkeypatch.setattr(repetition, "train", untrained)
    args = parse(repetition, kinds="memory_oldest", distances=200)
    args.clusters, args.window_size, args.memory_length, args.before = 8, 8, 128, 40
    (memory,) = repetition.main(args)["figures"]
    assert 0 <= memory["accuracy"] < 0.5 and memory["distance"] == 7 * 32 - 12
    assert memory["kept"] == 2 * 8 + 8 * 8 + 8 * 128 and memory["seen"] == 2 * 8 + 8 + 4
    assert "memory oldest" in capsys.readouterr().out
