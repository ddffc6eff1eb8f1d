"""Simple baselines for bits per byte."""

import gzip

import numpy as np


def gzip_bits_per_byte(documents):
    """Computes the bits per byte of `gzip -9` on all documents in one file.

    Args:
        documents: iterable of bytes objects.

    Returns:
        Float, compressed bits per byte of text.

    Raises:
        ValueError: if there is no text.

    >>> gzip_bits_per_byte([b"spam " * 1000, b"spam " * 1000]) < 0.1
    True
    """
    text = b"".join(documents)
    return 8 * len(gzip.compress(text, compresslevel=9)) / _at_least_one_byte(len(text))


def bigram_bits_per_byte(training_documents, documents, smoothing=0.1):
    """Computes the bits per byte of a bigram model, which sees only the previous byte.

    `p(b | a) = (count(a, b) + smoothing) / (count(a) + 256 * smoothing)`, with counts from the
    training documents. The first byte of a document follows a special start symbol.

    Args:
        training_documents: iterable of bytes objects to count.
        documents: iterable of bytes objects to predict.
        smoothing: float, added to every count. Defaults to 0.1.

    Returns:
        Float, the mean of `-log2 p` over the bytes of `documents`.

    Raises:
        ValueError: if `documents` have no text.

    >>> round(bigram_bits_per_byte([b"ab" * 1000], [b"ab" * 1000]), 2)
    0.04
    """
    smoothed = _pair_counts(training_documents) + smoothing
    bits = -np.log2(smoothed / smoothed.sum(axis=1, keepdims=True))
    counts = _pair_counts(documents)
    return float(np.sum(counts * bits)) / _at_least_one_byte(int(counts.sum()))


def _pair_counts(documents):
    """Counts how often byte b follows byte a, or 256, the start of a document: `[257, 256]`."""
    counts = np.zeros(257 * 256, np.int64)
    for document in documents:
        following = np.frombuffer(document, np.uint8).astype(np.int64)
        before = np.concatenate([[256], following[:-1]])[: len(following)]
        counts += np.bincount(before * 256 + following, minlength=counts.size)
    return counts.reshape(257, 256)


def _at_least_one_byte(size):
    if size == 0:
        raise ValueError("there is no text to compress: every document is empty")
    return size
