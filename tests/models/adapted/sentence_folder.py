"""A small text embedder in the layout of sentence-transformers."""

import json

import numpy as np
from safetensors.numpy import save_file

WORDS = "the cat dog sat on mat and then end of it who what where is a"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
LAYERS, DIM, INTERMEDIATE, POSITIONS = 2, 8, 16, 24


def write_embedder(folder, max_seq_length=16):
    """Writes the files of a BERT with random weights; returns the folder."""
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(VOCABULARY),
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.0,
        "hidden_act": "gelu",
        "do_lower_case": True,
    }
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_N"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(paths.items())
    ]
    files = {
        "config.json": config,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": max_seq_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": DIM,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False,
            "pooling_mode_max_tokens": False,
        },
        "tokenizer_config.json": {"do_lower_case": True},
    }
    (folder / "1_Pooling").mkdir()
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    save_file(_weights(), folder / "model.safetensors")
    return folder


def _tokenizer():
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    return {
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "model": {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]"},
    }


def _weights():
    rng = np.random.default_rng(0)
    dense, norms = {"pooler.dense": (DIM, DIM)}, ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        block = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense[f"{block}.attention.{name}"] = DIM, DIM
        dense[f"{block}.intermediate.dense"] = INTERMEDIATE, DIM
        dense[f"{block}.output.dense"] = DIM, INTERMEDIATE
        norms += [f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"]
    tables = {"word": len(VOCABULARY), "position": POSITIONS, "token_type": 2}
    weights = {
        f"embeddings.{name}_embeddings.weight": rng.normal(size=[rows, DIM])
        for name, rows in tables.items()
    }
    for name, (rows, columns) in dense.items():
        weights[f"{name}.weight"] = rng.normal(size=[rows, columns]) / columns**0.5
        weights[f"{name}.bias"] = rng.normal(size=rows) / 10
    for name in norms:
        weights[f"{name}.weight"] = 1 + rng.normal(size=DIM) / 10
        weights[f"{name}.bias"] = rng.normal(size=DIM) / 10
    return {name: x.astype("float32") for name, x in weights.items()}
