"""The first tokens of a text file."""

from pathlib import Path

import numpy as np

# Upper bound on the average number of characters of a token in a text.
CHARACTERS = 16


def first_tokens_of(path, tokenizer, count):
    """Returns the first tokens of a text file.

    Args:
        path: string or `Path` of a file in UTF-8.
        tokenizer: tokenizer of a model.
        count: int, number of tokens.

    Returns:
        int32 array `[count]`.

    Raises:
        ValueError: if the file is not in UTF-8 or has fewer tokens.

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
        raise ValueError(f"{path} must be a text file in UTF-8") from None
    tokens = np.asarray(tokenizer(text[: CHARACTERS * count]), np.int32)
    if len(tokens) < count:
        raise ValueError(f"{path} has {len(tokens):,} tokens; {count:,} are needed")
    return tokens[:count]
