"""Tokenizers of adapted models: the tokens of the `tokenizers` package, in Python and in graphs."""

import base64
import json

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from sentencepiece import sentencepiece_model_pb2

import rt_keras
from rt_keras.layers import FullHeads
from rt_keras.models.adapted.graph_tokens import LLAMA3_PATTERN
from rt_keras.models.adapted.tokenizers import adapted_tokenizer
from rt_keras.serving.served_tokenizer import served_tokenizer
from tests.models.adapted.llama_folder import sentence_piece

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "<a b>", "<|endoftext|>", "<|im_end|>"]
SPECIAL += ["<|begin_of_text|>", "<|end_of_text|>", "<think>", "</think>"]
SPECIAL += ["[UNK]", "[SEP]", "[CLS]", "[PAD]", "[MASK]"]
TEXTS = [
    "def f(x):\n    if x  ==  2025:\n\n\t\treturn 'x'  \n",
    "It's 3.14, they'LL say; ÉCOLE, cafe\u0301, straße, ΣΑΣ, İ ﬁn½ ٣٤ ½²",
    "한국어 日本語 हिन्दी \U0001f469\u200d\U0001f469 \u00a0\u2003\u3000x\u0085 y\x00\u200b\u00ad",
    " <mask> a<s></s>  <|im_end|>\n[SEP] [sep]<a b> ĴA ६ ▁▁x <|endoftext|>",
    "",
    "   \r\n \n\u2028  x \x0b\x0c z",
    "é" * 60 + " " + "a" * 101,
    # Newer than RE2's Unicode, and newer than that of BERT's normalizer.
    "a\U00010d4a\U000105c0 1\U00010d40 x\u2e43y \u0d3c\u08e2",
]
NO_FLAGS = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
ADDED = [
    {"id": number, "content": token, "special": True, **NO_FLAGS, "lstrip": token == "<mask>"}
    for number, token in enumerate(SPECIAL)
]
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def in_turn(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps]}


def split(pattern):
    words = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return in_turn({**words, "invert": False}, {**BYTES, "use_regex": False})


def byte_pairs(splits, normalizer=None):
    """Returns a tokenizer.json with a vocabulary of the texts."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )
    model.train_from_iterator(TEXTS * 2, trainer)
    found = json.loads(model.to_str()) | {"added_tokens": ADDED, "decoder": BYTES}
    return found | {"pre_tokenizer": splits, "normalizer": normalizer}


def word_pieces(lowercase):
    words = [*SPECIAL, *"abcdefxyz0123É.,'½日", *(f"##{x}" for x in "abcdeéßσς"), "straße", "it"]
    model = {"unk_token": "[UNK]", "vocab": {word: number for number, word in enumerate(words)}}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    normalizer |= {"strip_accents": None, "lowercase": lowercase}
    found = {"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    return {**found, "added_tokens": ADDED, "model": {"type": "WordPiece", **model}}


def of_folder(family, definition):
    """Returns the tokenizer of a folder with a tokenizer.json."""
    base, model = getattr(keras_hub.tokenizers, f"{family}Tokenizer"), definition["model"]
    options = {"bos_token": "<s>", "eos_token": "</s>", "misc_special_tokens": set()}
    options = options if family == "Llama3" else {}
    merges = {"merges": map(" ".join, model["merges"])} if "merges" in model else {}
    vocabulary = model["vocab"] if merges else [*model["vocab"]]
    return adapted_tokenizer(base(vocabulary, **merges, **options), definition)


def in_graph(tokenizer, texts=TEXTS):
    batches = tf.data.Dataset.from_tensor_slices(texts).batch(4).map(tokenizer)
    return [row for batch in batches for row in batch.to_list()]


def expected(definition, texts=TEXTS):
    home = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", **definition}))
    return [row.ids for row in home.encode_batch(texts, add_special_tokens=False)]


FOLDERS = {
    "GPT2": (byte_pairs, BYTES),
    "Roberta": (byte_pairs, {**BYTES, "add_prefix_space": True}),
    "Llama3": (byte_pairs, in_turn({"type": "Digits", "individual_digits": True}, BYTES)),
    "SmolLM3": (byte_pairs, split(LLAMA3_PATTERN)),
    "Qwen3": (byte_pairs, split(LLAMA3_PATTERN.replace("{1,3}", "")), {"type": "NFC"}),
    "Bert": (word_pieces, True),
    "DistilBert": (word_pieces, False),
}


@pytest.mark.parametrize("family", FOLDERS)
def test_tokens_of_folders_are_those_of_the_tokenizers_package(family):
    make, *options = FOLDERS[family]
    definition = {**make(*options), "post_processor": None}
    tokenizer = of_folder(family, definition)
    assert tokenizer(TEXTS) == in_graph(tokenizer) == expected(definition)
    one = tokenizer(TEXTS[0])
    assert one.dtype == "int32" and one.tolist() == tokenizer(TEXTS)[0]


@pytest.mark.parametrize("family", ["Bart", "Roberta"])
def test_folders_without_a_tokenizer_json_have_the_special_tokens_of_their_home(family):
    definition = {**byte_pairs(BYTES), "post_processor": None}
    model, special = definition["model"], ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    definition["added_tokens"] = [x for x in ADDED if x["content"] in special]
    made = getattr(keras_hub.tokenizers, f"{family}Tokenizer")
    tokenizer = adapted_tokenizer(made(model["vocab"], map(" ".join, model["merges"])), {})
    assert tokenizer(TEXTS) == in_graph(tokenizer) == expected(definition)


@pytest.mark.parametrize("by_spaces", [True, False])
def test_pieces_of_equal_scores_are_those_of_the_tokenizers_package(by_spaces):
    texts = [f"{'-' * n} {'=' * n} {'.' * n} f{'(' * n}x{')' * n} é½" for n in range(0, 80, 3)]
    texts += ["a\x85b\u2003c \u3000d", "", "  x <mask>y"]
    proto = sentence_piece(90, texts, model_type="unigram", hard_vocab_limit=False)
    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [*((token, 0) for token in special), *pieces[3:], ("<mask>", 0)]
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}]
    steps += [{"type": "Strip", "strip_left": False, "strip_right": True}]
    steps += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]
    words = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    added = [{**ADDED[0], "id": number, "content": special[number]} for number in range(4)]
    added += [{**ADDED[4], "id": len(pieces) - 1}]
    definition = {
        "normalizer": {"type": "Sequence", "normalizers": steps[: 1 if by_spaces else 3]},
        "pre_tokenizer": in_turn({"type": "WhitespaceSplit"}, words) if by_spaces else words,
    }
    pieces = {"type": "Unigram", "vocab": pieces, "unk_id": 3}
    definition |= {"added_tokens": added, "model": pieces, "decoder": None}
    original = keras_hub.tokenizers.XLMRobertaTokenizer(proto)
    tokenizer = adapted_tokenizer(original, definition)
    assert tokenizer(texts) == in_graph(tokenizer, texts) == expected(definition, texts)
    assert tokenizer.proto == proto
    if by_spaces:
        assert adapted_tokenizer(original)(texts) == expected(definition, texts)


@pytest.mark.parametrize("scheme", [None, "always", "first"])
def test_tokens_of_sentence_piece_are_those_of_the_tokenizers_package(scheme, tmp_path):
    options = {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False}
    proto = sentence_piece(340, TEXTS[:3], normalization_rule_name="identity", **options)
    tokenizer = keras_hub.tokenizers.MistralTokenizer(proto)
    pieces = tokenizer.get_vocabulary()
    pairs = [(x[:i], x[i:], number) for number, x in enumerate(pieces) for i in range(1, len(x))]
    merges = [list(pair) for *pair, _ in pairs if {*pair} < {*pieces[3:]} or pair[0] == pair[1]]
    model = {"type": "BPE", "vocab": {piece: number for number, piece in enumerate(pieces)}}
    model |= {"merges": merges, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    splits = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    older = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}
    added = [{**ADDED[0], "id": number, "content": pieces[number]} for number in range(3)]
    definition = {"normalizer": None, "pre_tokenizer": splits} if scheme else {}
    definition = {"normalizer": older, "pre_tokenizer": None, "decoder": None, **definition}
    definition |= {"added_tokens": added, "model": model, "post_processor": None}
    tokenizer = adapted_tokenizer(tokenizer, definition)
    assert tokenizer(TEXTS) == in_graph(tokenizer) == expected(definition)
    tokenizer.save_assets(tmp_path)
    loaded = type(tokenizer).from_config(tokenizer.get_config())
    loaded.load_assets(tmp_path)
    assert loaded(TEXTS) == in_graph(loaded) == expected(definition)
    if scheme is None:
        alone = adapted_tokenizer(keras_hub.tokenizers.MistralTokenizer(proto))
        assert alone(TEXTS[:-2]) == in_graph(alone)[:-2] == expected(definition)[:-2]


def test_generate_fit_and_exports_read_spaces_as_gpt2_does(tmp_path):
    pieces = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "ĠĠ", "Ġa", "<|endoftext|>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = keras_hub.tokenizers.GPT2Tokenizer(vocabulary, ["Ġ Ġ", "Ġ a"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=6)
    backbone = keras_hub.models.GPT2Backbone(len(pieces), 1, 2, 16, 32, max_sequence_length=32)
    model = rt_keras.adapt(keras_hub.models.GPT2CausalLM(backbone, preprocessor), [FullHeads(2)])
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path / "preset"))
    ids = [pieces.index(piece) for piece in ("<|endoftext|>", "x", "Ġ", "Ġa")]
    for task in (model, keras.saving.load_model(tmp_path / "model.keras"), loaded):
        read = task.preprocessor.generate_preprocess(["x  a"], sequence_length=4)["token_ids"]
        texts = tf.data.Dataset.from_tensors(["x  a"]).map(task.preprocessor)
        fitted = next(iter(texts))[0]["token_ids"]
        assert np.asarray(read)[0].tolist() == fitted[0, :4].numpy().tolist() == ids
        served = served_tokenizer(task.preprocessor.tokenizer)
        assert served.tokens(tf.constant(["x  a"])).to_list() == [ids[1:]]
    model.preprocessor = preprocessor
    assert model.preprocessor.tokenizer("x  a").tolist() == ids[1:]


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("normalizer", {"normalizer": {"type": "Lowercase"}}),
        ("pattern", {"pre_tokenizer": split(r"(?<=a)b|\s+")}),
        ("pre_tokenizer", {"pre_tokenizer": in_turn({"type": "Whitespace"}, BYTES)}),
        ("added token with single_word", {"added_tokens": [{**ADDED[0], "single_word": True}]}),
    ],
)
def test_rules_that_graphs_cannot_follow_are_refused_by_name(name, entries):
    definition = {**byte_pairs(BYTES), "post_processor": None, **entries}
    tokenizer = of_folder("GPT2", definition)
    assert tokenizer(TEXTS) == expected(definition)
    with pytest.raises(ValueError, match=f"The {name} of the model's tokenizer works in Python"):
        in_graph(tokenizer)


def test_bytes_that_are_not_utf8_are_refused_in_python_and_in_graphs():
    tokenizer, surrogate = of_folder("GPT2", byte_pairs(BYTES)), b"a\xed\xa0\x80"
    with pytest.raises(ValueError, match="inputs must be valid UTF-8"):
        tokenizer(tf.constant([surrogate]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="texts must be valid UTF-8"):
        in_graph(tokenizer, ["b", surrogate])
