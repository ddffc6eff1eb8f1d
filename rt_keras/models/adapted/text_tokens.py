"""The first tokens of a file of text."""

from pathlib import Path

import numpy as np

# Characters of a token, at most, on average over a text.
CHARACTERS = 16


def first_tokens_of(path, tokenizer, count):
    """The first tokens of a file of text.

    Args:
        path: string or `Path`, the file, in UTF-8.
        tokenizer: the tokenizer of a model.
        count: int, how many.

    Returns:
        int32 array `[count]`.

    Raises:
        ValueError: if the file is no text, or has fewer tokens.

    >>> import tempfile
    >>> from rt_keras.data import ByteTokenizer
    >>> path = Path(tempfile.mkdtemp(), "text.txt")
    >>> _ = path.write_text("abc")
    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.detokenize(first_tokens_of(path, tokenizer, 2)).numpy()
    b'ab'
    >>> first_tokens_of(path, tokenizer, 4)
    Traceback (most recent call last):
    ...
    ValueError: ...text.txt has 3 tokens; 4 are needed
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be a text in UTF-8") from None
    tokens = np.asarray(tokenizer(text[: CHARACTERS * count]), np.int32)
    if len(tokens) < count:
        raise ValueError(f"{path} has {len(tokens):,} tokens; {count:,} are needed")
    return tokens[:count]
