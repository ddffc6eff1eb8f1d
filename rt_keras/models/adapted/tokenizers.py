"""KerasHub's tokenizers with the tokens of a model's home, the same in Python and in graphs.

KerasHub's own split texts by one pattern in Python and by another in graphs, in all families, and
leave out most of a folder's tokenizer.json. Here, the `tokenizers` package follows that file, or
the rules of the family, in Python; operations of this package follow it in graphs.
"""

import json
from pathlib import Path

import keras_hub
import numpy as np
import tensorflow as tf
import tokenizers

from rt_keras.data.tokenizer import batch_of_strings, check_strings, filled
from rt_keras.keras_internals import use_python_tokenizer
from rt_keras.models.adapted import graph_tokens
from rt_keras.models.adapted.architectures import adapted_class
from rt_keras.models.adapted.backbones import BACKBONES
from rt_keras.models.adapted.graph_tokens import LLAMA3_PATTERN

ENTRIES = "normalizer", "pre_tokenizer", "decoder", "added_tokens", "model", "post_processor"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
RULES = "rules.json"
FLAGS = dict.fromkeys(["special", "single_word", "lstrip", "rstrip"], False)


class OwnRules:
    """Mixin of KerasHub's tokenizers that follows the rules of a tokenizer.json.

    Args:
        rules: string, a tokenizer.json without vocabulary and merges. Defaults to None, for the
            rules of the family.
        **kwargs: arguments of KerasHub's tokenizer.
    """

    # The family's token that takes the spaces before it with it.
    mask = None

    def __init__(self, *args, rules=None, **kwargs):
        self.rules, self.in_python = rules, None
        super().__init__(*args, **kwargs)

    def get_config(self):
        return {**super().get_config(), "rules": self.rules}

    def tokenize(self, inputs):
        """Converts strings, UTF-8, to tokens, as KerasHub's method does."""
        check_strings("inputs", inputs, needs_utf8=True)
        with tf.device("cpu"):
            texts, one = batch_of_strings(inputs)
            if not tf.executing_eagerly():
                tokens = tf.cast(self.tokens_in_graph(self.all_rules(), texts), self.compute_dtype)
            elif self.in_python is None:
                tokens = self.as_in_graphs(texts).to_list()
            else:
                texts = [text.decode("utf-8") for text in texts.numpy()]
                encoded = self.in_python.encode_batch(texts, add_special_tokens=False)
                tokens = [text.ids for text in encoded]
            if self.sequence_length is not None:
                if isinstance(tokens, list):
                    tokens = tf.ragged.constant(tokens, self.compute_dtype, ragged_rank=1)
                tokens = filled(tokens, self.sequence_length, getattr(self, "pad_token_id", 0))
            elif isinstance(tokens, list):
                return np.array(tokens[0], self.compute_dtype) if one else tokens
            return tokens[0] if one else tokens

    def all_rules(self):
        """Returns the rules as a dictionary, with the family's where one is not given."""
        rules = self.family_rules()
        for name, entry in json.loads(self.rules or "{}").items():
            # Files may leave out options that have a default.
            known = isinstance(entry, dict) and rules.get(name) or {}
            other = entry if not known else {**known, **entry}
            rules[name] = other if known and other["type"] == known["type"] else entry
        flags = [{**FLAGS, "normalized": not x.get("special"), **x} for x in rules["added_tokens"]]
        return {**rules, "added_tokens": flags}

    def _read_rules(self, **vocabulary):
        """Creates what tokenizes in Python, from the vocabulary and merges of the model."""
        rules = self.all_rules()
        rules["model"] |= vocabulary
        absent = dict.fromkeys(["truncation", "padding", "post_processor"])
        definition = json.dumps({"version": "1.0", **absent, **rules})
        self.in_python = tokenizers.Tokenizer.from_str(definition)

    def _added(self, tokens):
        return [
            {"id": self.token_to_id(x), "content": x, "special": True, "lstrip": x == self.mask}
            for x in tokens
        ]


class BytePairs(OwnRules):
    """Mixin of KerasHub's byte-pair tokenizers, with the attributes of a family."""

    pattern, normalizer, ignore_merges = None, None, False

    def family_rules(self):
        splits = {**BYTE_LEVEL, "add_prefix_space": self.add_prefix_space}
        if self.pattern:
            words = {"type": "Split", "pattern": {"Regex": self.pattern}}
            words |= {"behavior": "Isolated", "invert": False}
            splits = {"pretokenizers": [words, {**splits, "use_regex": False}], "type": "Sequence"}
        # KerasHub splits the unknown token of these families, and BART's mask.
        home = ["<unk>", self.mask] if self.mask else []
        known = {*self.unsplittable_tokens, *home}.intersection(self.vocabulary)
        return {
            "normalizer": self.normalizer,
            "pre_tokenizer": splits,
            "decoder": BYTE_LEVEL,
            "added_tokens": self._added(known),
            "model": {"type": "BPE", "ignore_merges": self.ignore_merges and self.rules is None},
        }

    def set_vocabulary_and_merges(self, vocabulary, merges):
        """See KerasHub's method."""
        super().set_vocabulary_and_merges(vocabulary, merges)
        if self.vocabulary is not None:
            pairs = [merge.split(" ") for merge in self.merges if "#version:" not in merge]
            self._read_rules(vocab=dict(self.vocabulary), merges=pairs)
            use_python_tokenizer(self, self.in_python)

    def tokens_in_graph(self, rules, texts):
        """Converts strings `[batch]` to ragged tokens inside a graph."""
        return graph_tokens.byte_pair_tokens(self, rules, texts)

    def detokenize(self, inputs):
        """Converts tokens to strings, as KerasHub's method does."""
        decoder = None if tf.executing_eagerly() else self.all_rules()["decoder"]
        if decoder is not None and decoder["type"] != "ByteLevel":
            graph_tokens.refuse("decoder", decoder)
        return super().detokenize(inputs)


class WordPieces(OwnRules):
    """Mixin of KerasHub's WordPiece tokenizers."""

    def family_rules(self):
        options = self.get_config()
        special = [*self.special_tokens, *(options["special_tokens"] or ())]
        # As in Hugging Face's layout, or as KerasHub's options say.
        read = self.special_tokens_in_strings or self.rules is not None
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": self.split_on_cjk,
                "strip_accents": self.strip_accents if self.rules is None else None,
                "lowercase": self.lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": None,
            "added_tokens": self._added(special if read else ()),
            "model": {
                "type": "WordPiece",
                "unk_token": self.oov_token,
                "continuing_subword_prefix": self.suffix_indicator,
                "max_input_chars_per_word": 100,
            },
        }

    def set_vocabulary(self, vocabulary):
        """See KerasHub's method."""
        super().set_vocabulary(vocabulary)
        if self.vocabulary is None:
            return
        import tensorflow_text

        self._read_rules(vocab={word: number for number, word in enumerate(self.vocabulary)})
        model = self.all_rules()["model"]
        self.pieces = tensorflow_text.FastWordpieceTokenizer(
            self.vocabulary,
            token_out_type=tf.int32,
            suffix_indicator=model["continuing_subword_prefix"],
            # A character has at most 4 bytes.
            max_bytes_per_word=4 * model["max_input_chars_per_word"],
            unknown_token=model["unk_token"],
            no_pretokenization=True,
        )

    def tokens_in_graph(self, rules, texts):
        """Converts strings `[batch]` to ragged tokens inside a graph."""
        return graph_tokens.word_piece_tokens(self.pieces.tokenize, rules, texts)


class SentencePieces(OwnRules):
    """Mixin of KerasHub's SentencePiece tokenizers.

    Rules have the whole vocabulary, and are an asset. Without them, graph and Python read the
    model's proto, whose control tokens and whose pieces of the user are added tokens.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.file_assets = [*self.file_assets, RULES]

    def family_rules(self):
        special = {*self.special_tokens, self.mask}.intersection(self.get_vocabulary())
        added = self._added({*graph_tokens.added_pieces(self.proto), *special})
        splits = {"pre_tokenizer": {"type": "WhitespaceSplit"}} if self.mask else {}
        return {**dict.fromkeys(ENTRIES), "added_tokens": added, "model": {}, **splits}

    def get_config(self):
        return {**super().get_config(), "rules": None}

    def save_assets(self, dir_path):
        """See KerasHub's method."""
        super().save_assets(dir_path)
        Path(dir_path, RULES).write_text(self.rules or "{}", encoding="utf-8")

    def load_assets(self, dir_path):
        """See KerasHub's method."""
        path = Path(dir_path, RULES)
        self.rules = path.read_text(encoding="utf-8") if path.is_file() else None
        super().load_assets(dir_path)

    def set_proto(self, proto):
        """See KerasHub's method."""
        super().set_proto(proto)
        if self.proto is None:
            return
        self.pieces, original = None, self.proto
        # Scores of the other families are integers.
        if self.mask:
            super().set_proto(graph_tokens.with_round_scores(original))
            self.proto = original
        if "model" in json.loads(self.rules or "{}"):
            self._read_rules()
            self.pieces = graph_tokens.new_pieces(self.proto)
        added = {token["content"]: token["id"] for token in self.all_rules()["added_tokens"]}
        names, ids = tf.constant([*added], tf.string), tf.constant([*added.values()], tf.int32)
        self.added_ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(names, ids), -1
        )
        self.as_in_graphs = tf.function(
            lambda texts: self.tokens_in_graph(self.all_rules(), texts),
            [tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def tokens_in_graph(self, rules, texts):
        """Converts strings `[batch]` to ragged tokens inside a graph."""
        # Not of this class.
        tables = super(OwnRules, self).tokenize, self.pieces, self.added_ids
        return graph_tokens.sentence_piece_tokens(*tables, rules, texts)


class Llama3BytePairs(BytePairs):
    """Mixin that saves the special tokens that KerasHub's configuration lacks.

    Args:
        misc_special_tokens: set or list of strings, other tokens that are not split.
        **kwargs: arguments of `keras_hub.tokenizers.Llama3Tokenizer`.
    """

    pattern, ignore_merges = LLAMA3_PATTERN, True

    def __init__(self, *args, misc_special_tokens=(), **kwargs):
        # KerasHub's constructor changes the set.
        super().__init__(*args, misc_special_tokens=set(misc_special_tokens), **kwargs)

    def get_config(self):
        return {**super().get_config(), **_special_tokens(self)}


def _special_tokens(tokenizer):
    """Returns the arguments that `Llama3Tokenizer.get_config` omits."""
    start, end = tokenizer.start_token, tokenizer.end_token
    return {
        "bos_token": start,
        "eos_token": end,
        "misc_special_tokens": sorted({*tokenizer.special_tokens} - {start, end}),
    }


# The mixin of each family of KerasHub's tokenizers, and what differs in it.
_QWEN3 = {"pattern": LLAMA3_PATTERN.replace("{1,3}", ""), "normalizer": {"type": "NFC"}}
_SMOLLM3 = {"pattern": LLAMA3_PATTERN, "ignore_merges": True}
FAMILIES = {
    **dict.fromkeys(["BytePair", "GPT2", "OPT"], (BytePairs, {})),
    **dict.fromkeys(["Bart", "Roberta"], (BytePairs, {"mask": "<mask>"})),
    **dict.fromkeys(["Bert", "DistilBert"], (WordPieces, {})),
    **dict.fromkeys(["Gemma3", "Llama", "Mistral"], (SentencePieces, {})),
    "XLMRoberta": (SentencePieces, {"mask": "<mask>"}),
    **{"Llama3": (Llama3BytePairs, {}), "Qwen3": (BytePairs, _QWEN3)},
    "SmolLM3": (BytePairs, _SMOLLM3),
}


def _adapted(family):
    """Returns KerasHub's class of a family's tokenizers, and the adapted class, as a pair."""
    base = getattr(keras_hub.tokenizers, f"{family}Tokenizer")
    mixin, attributes = FAMILIES[family]
    backbone_cls = BACKBONES.get(base.backbone_cls)
    return base, adapted_class(base, mixin, backbone_cls=backbone_cls, **attributes)


# Adapted classes by the class that they adapt.
TOKENIZERS = dict(map(_adapted, FAMILIES))


def adapted_preprocessor(preprocessor, definition=None):
    """Returns a preprocessor whose tokenizer has the rules of its family or folder.

    Args:
        preprocessor: a preprocessor, or None.
        definition: see `adapted_tokenizer`.

    Returns:
        The same one if its tokenizer has them already or is of another class.
    """
    tokenizer = getattr(preprocessor, "tokenizer", None)
    return _with_tokenizer(preprocessor, adapted_tokenizer(tokenizer, definition))


def adapted_tokenizer(tokenizer, definition=None):
    """Returns a tokenizer with the rules of its family or folder.

    Args:
        tokenizer: a tokenizer.
        definition: dictionary, the tokenizer.json of a folder in Hugging Face's layout, or an empty
            one if it has none. Defaults to None, for no folder.

    Returns:
        The same one if it is not of one of KerasHub's classes in `TOKENIZERS`.
    """
    if type(tokenizer) not in TOKENIZERS:
        return tokenizer
    config = _config(tokenizer)
    rules = {name: definition[name] for name in ENTRIES if name in (definition or {})}
    if "proto" in config and rules:
        _check_same_pieces(tokenizer.get_vocabulary(), rules["model"]["vocab"])
    elif rules:
        rules["model"] = {**rules["model"]}
        vocabulary, merges = rules["model"].pop("vocab"), rules["model"].pop("merges", None)
        vocabulary = vocabulary | {x["content"]: x["id"] for x in rules.get("added_tokens", ())}
        config["vocabulary"] = sorted(vocabulary, key=vocabulary.get)
        if "merges" in config:
            config["vocabulary"] = vocabulary
            config["merges"] = [x if isinstance(x, str) else " ".join(x) for x in merges]
    config["rules"] = None if definition is None else json.dumps(rules)
    return TOKENIZERS[type(tokenizer)].from_config(config)


def restored_preprocessor(preprocessor):
    """Inverts `adapted_preprocessor`: the tokenizer is KerasHub's, with KerasHub's rules."""
    tokenizer = getattr(preprocessor, "tokenizer", None)
    if isinstance(tokenizer, OwnRules):
        config = _config(tokenizer)
        del config["rules"]
        tokenizer = tokenizer.original_class.from_config(config)
    return _with_tokenizer(preprocessor, tokenizer)


def _config(tokenizer):
    """Returns the configuration of a tokenizer, with its vocabulary."""
    words = getattr(tokenizer, "vocabulary", None)
    # KerasHub refuses the dictionary that Keras makes of an attribute.
    parts = {"vocabulary": dict(words) if isinstance(words, dict) else words}
    if isinstance(tokenizer, keras_hub.tokenizers.BytePairTokenizer):
        parts["merges"] = tokenizer.merges
    elif isinstance(tokenizer, keras_hub.tokenizers.SentencePieceTokenizer):
        parts = {"proto": tokenizer.proto}
    config = {**tokenizer.get_config(), **parts}
    if isinstance(tokenizer, keras_hub.tokenizers.Llama3Tokenizer):
        config |= _special_tokens(tokenizer)
        # KerasHub's constructor takes only a set.
        config["misc_special_tokens"] = set(config["misc_special_tokens"])
    return config


def _check_same_pieces(pieces, vocabulary):
    """Raises a ValueError if a tokenizer.json is not of the SentencePiece model beside it."""
    if isinstance(vocabulary, list):
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    others = vocabulary.items() - {piece: number for number, piece in enumerate(pieces)}.items()
    # Gemma's files have two names for the tab.
    if len(others) > 1:
        example = min(others)
        raise ValueError(f"tokenizer.json differs from SentencePiece's file beside it: {example}")


def _with_tokenizer(preprocessor, tokenizer):
    if tokenizer is getattr(preprocessor, "tokenizer", None):
        return preprocessor
    config = {**preprocessor.get_config(), "tokenizer": tokenizer}
    return type(preprocessor).from_config(config)
