"""Pieces of sentences inside graphs as the `tokenizers` package finds them in Python."""

import tensorflow as tf

from rt_keras.models.adapted.text_splits import BORDER, WHITE, refuse, split, split_at_special

SPACE = "▁"
# What SentencePiece does as well, for models that come from it.
KNOWN = {"Precompiled", "Strip", "Replace", "Prepend", "Split", "WhitespaceSplit", "Metaspace"}


def _model(proto):
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(proto)


def added_pieces(proto):
    """Returns the tokens of a SentencePiece model, bytes, that are never parts of words."""
    kinds = 2, 3, 4  # That of unknown pieces, control tokens, and pieces that the user defined.
    return [piece.piece for piece in _model(proto).pieces if piece.type in kinds]


def with_round_scores(proto):
    """Returns a SentencePiece model whose sums of scores are exact, so that ties stay ties."""
    model = _model(proto)
    for piece in model.pieces:
        piece.score = round(piece.score * 2**14) / 2**14
    return model.SerializeToString()


def new_pieces(proto):
    """Returns SentencePiece's operation without a space before texts, None if it strips spaces."""
    import tensorflow_text

    model = _model(proto)
    if model.normalizer_spec.remove_extra_whitespaces:
        return None
    model.normalizer_spec.add_dummy_prefix = False
    return tensorflow_text.SentencepieceTokenizer(model.SerializeToString())


def sentence_piece_tokens(pieces_with_space, pieces, added_ids, rules, texts):
    """Tokenizes texts inside a graph.

    Args:
        pieces_with_space: function from texts `[parts]` to ragged ids, as the model's proto says.
        pieces: see `new_pieces`.
        added_ids: table from added tokens to their ids, -1 for others.
        rules: dictionary, a tokenizer.json.
        texts: string `[batch]`, UTF-8.

    Returns:
        Ragged int32 `[batch, (length)]`.

    Raises:
        ValueError: if graphs cannot follow the rules.
    """
    steps = [*_steps(rules["normalizer"]), *_steps(rules["pre_tokenizer"])]
    for step in steps:
        if step["type"] not in KNOWN:
            refuse("normalizer or pre_tokenizer", step)
    parts, rows, special = split_at_special(texts, rules["added_tokens"])
    ordinary = tf.where(special, "", parts)
    spaces = next((step for step in steps if step["type"] == "Metaspace"), None)
    at_white = {"type": "WhitespaceSplit"} in steps
    if at_white or (pieces is None and spaces and spaces.get("split", True)):
        # Texts have larger sums than words, which float32 rounds. The model deletes vertical tabs.
        white = WHITE.replace(r"\t-\r", r"\t\n\f\r") if at_white else " "
        words, places = split(tf.strings.regex_replace(ordinary, f"[{white}]+", BORDER))
        found, count = pieces_with_space(words), tf.size(parts, tf.int64)
        places = tf.gather(places, found.value_rowids())
        tokens = tf.RaggedTensor.from_value_rowids(found.values, places, count, validate=False)
    elif pieces is None or not spaces:
        tokens = pieces_with_space(ordinary)
    else:
        first = tf.concat([[True], rows[1:] != rows[:-1]], 0)[: tf.size(rows)]
        chosen = {"always": True, "first": first, "never": False}[spaces["prepend_scheme"]]
        chosen &= ~tf.strings.regex_full_match(ordinary, f"([ {SPACE}](.|\n)*)?")
        tokens = pieces.tokenize(tf.where(chosen, SPACE + ordinary, ordinary))
    added = tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(added_ids.lookup(parts), special), tf.cast(special, tf.int64)
    )
    tokens = tf.concat([added, tokens], axis=1)
    rows, count = tf.gather(rows, tokens.value_rowids()), tf.shape(texts, tf.int64)[0]
    return tf.RaggedTensor.from_value_rowids(tokens.values, rows, count, validate=False)


def _steps(entry):
    """Returns the steps of an entry of a tokenizer.json, which may be a sequence."""
    if entry is None or entry["type"] != "Sequence":
        return [entry] if entry else []
    inner = entry.get("normalizers") or entry.get("pretokenizers")
    return [step for part in inner for step in _steps(part)]
