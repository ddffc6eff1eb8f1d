import numpy as np
import pytest

from rt_keras.training import baselines

DOCUMENTS = [b"import this\n", b"", "naïve café\n".encode(), bytes(range(256)) * 3]


def test_bigram_follows_its_equation():
    counts = {}
    for document in DOCUMENTS:
        for before, byte in zip(["start", *document], document):
            counts[before, byte] = counts.get((before, byte), 0) + 1
    held_out = [b"is a\xff", b"n"]
    bits = 0.0
    for document in held_out:
        for before, byte in zip(["start", *document], document):
            seen = sum(count for (first, _), count in counts.items() if first == before)
            bits -= np.log2((counts.get((before, byte), 0) + 0.1) / (seen + 25.6))
    got = baselines.bigram_bits_per_byte(DOCUMENTS, held_out)
    np.testing.assert_allclose(got, bits / sum(map(len, held_out)))


def test_a_bigram_without_training_text_knows_nothing():
    assert baselines.bigram_bits_per_byte([], [b"anything"]) == pytest.approx(8.0)


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="no text"):
        baselines.gzip_bits_per_byte([b""])
    with pytest.raises(ValueError, match="no text"):
        baselines.bigram_bits_per_byte([b"a"], [])
