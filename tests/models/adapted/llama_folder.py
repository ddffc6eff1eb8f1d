"""Writes the folder of a tiny Llama, Qwen 3, SmolLM3 or Mistral in Hugging Face's layout."""

import io
import json

import numpy as np

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_OF_SMOLLM3 = ("<|begin_of_text|>", "<|end_of_text|>", "<think>", "</think>")
MERGES = ("t h", "th e", "Ġ the")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 48,
    "rope_theta": 100000.0,
}


# What differs in the configuration of Qwen 3.
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 8,
    "use_sliding_window": False,
}
# The same of SmolLM3.
SMOLLM3 = {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "no_rope_layers": [1, 0],
    "layer_types": ["full_attention"] * 2,
}
# The same of Mistral's models since version 0.2, which have no window.
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 15,
    "head_dim": 8,
    "tie_word_embeddings": False,
}


def write_llama(folder, without=(), shards=1, dtype="float32", **config):
    """Writes the folder.

    Args:
        folder: path, created.
        without: tuple of strings, files that are left out.
        shards: int, the number of files that the weights are in.
        dtype: string, the type of the weights.
        **config: entries of config.json to change; None to leave one out.

    Returns:
        The path.
    """
    vocabulary = _vocabulary()
    special = SPECIAL_OF_SMOLLM3 if config.get("model_type") == "smollm3" else SPECIAL
    config = {**CONFIG, "vocab_size": len(vocabulary) + len(special), **config}
    added = [
        {"id": len(vocabulary) + number, "content": token, "special": True}
        for number, token in enumerate(special)
    ]
    files = {
        "config.json": {name: value for name, value in config.items() if value is not None},
        "tokenizer.json": {
            "added_tokens": added,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": _merges(config)},
        },
        "tokenizer_config.json": {"bos_token": special[1], "eos_token": special[2]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name not in without:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    if config["model_type"] == "mistral":
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.model").write_bytes(sentence_piece(MISTRAL["vocab_size"]))
    if "model.safetensors" not in without:
        _write_weights(folder, _weights(config, dtype), shards)
    return folder


def _vocabulary():
    """Returns a token for each byte, as in byte-level BPE, and one for each merge."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
    merged = (merge.replace(" ", "") for merge in MERGES)
    return {token: number for number, token in enumerate([*tokens, *merged])}


def sentence_piece(vocab_size, lines=("the cat and the dog", "the end"), **options):
    """Returns a SentencePiece model with Mistral's special tokens."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines] * 20),
        model_writer=model,
        vocab_size=vocab_size,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def _merges(config):
    # KerasHub reads strings for Llama and pairs for the others.
    is_llama = config["model_type"] == "llama"
    return list(MERGES) if is_llama else [merge.split(" ") for merge in MERGES]


def _weights(config, dtype):
    rng = np.random.default_rng(0)
    size, inner = config["hidden_size"], config["intermediate_size"]
    depth = config.get("head_dim", size // config["num_attention_heads"])
    queries, pairs = (config[f"num_{x}_heads"] * depth for x in ("attention", "key_value"))
    shapes = {
        "self_attn.q_proj": (queries, size),
        "self_attn.k_proj": (pairs, size),
        "self_attn.v_proj": (pairs, size),
        "self_attn.o_proj": (size, queries),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
        "input_layernorm": (size,),
        "post_attention_layernorm": (size,),
    }
    if config["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm": (depth,), "self_attn.k_norm": (depth,)}
    found = {"model.embed_tokens": (config["vocab_size"], size), "model.norm": (size,)}
    if not config["tie_word_embeddings"]:
        found["lm_head"] = (config["vocab_size"], size)
    for number in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in shapes.items()}
    return {
        f"{name}.weight": (rng.normal(size=shape) * 0.3).astype(dtype)
        for name, shape in found.items()
    }


def _write_weights(folder, weights, shards):
    from safetensors.numpy import save_file

    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    names = [f"model-{number}.safetensors" for number in range(shards)]
    places = {key: names[number % shards] for number, key in enumerate(weights)}
    for name in names:
        save_file({key: weights[key] for key in weights if places[key] == name}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
