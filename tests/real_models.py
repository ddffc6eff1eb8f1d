"""Adapted models beside the originals of KerasHub, on folders of real weights.

    python -m tests.real_models --text BOOK.txt --smollm2 DIR --gemma3 DIR --minilm DIR

runs every check of the given models, each in a separate process, and prints what it found with its
target. Folders have the layout of Hugging Face. `rt-keras benchmark pretrained` measures time and
memory.
"""

import argparse
import concurrent.futures
import multiprocessing
import tempfile
from pathlib import Path

import keras_hub
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  The operations of Gemma's tokenizer.

import rt_keras
import rt_keras.models
from rt_keras.layers import FullHeads

HEADS = {"smollm2": 9, "gemma3": 4, "minilm": 12}
PROMPT_CHARACTERS, NEW_TOKENS = 400, 64


# What is loaded, and what it gives.


def adapted(name, folder, layers=None):
    return rt_keras.adapt(folder, [FullHeads(HEADS[name])], layers=layers)


def ids_and_logits(model, text):
    ids = np.asarray(model.preprocessor.tokenizer(text))[None, :1024].astype("int32")
    assert ids.shape[1] == 1024, f"the text has only {ids.shape[1]} tokens"
    return ids, np.asarray(model({"token_ids": ids, "padding_mask": np.ones_like(ids)}))


def continuation(model, text):
    model.compile(sampler="greedy")
    prompt = text[2000 : 2000 + PROMPT_CHARACTERS]
    length = len(model.preprocessor.tokenizer(prompt)) + 1 + NEW_TOKENS
    return model.generate(prompt, length, stop_token_ids=None)


# The checks: functions of a model's name, its folder, a text and the folder of what checks leave to
# others. They run in processes of their own.


def reference(name, folder, text, output):
    model = keras_hub.models.CausalLM.from_preset(folder)
    # KerasHub's own tokens are others.
    model.preprocessor = adapted(name, folder, layers=[]).preprocessor
    ids, logits = ids_and_logits(model, text)
    np.savez(output / "expected.npz", ids=ids, logits=logits, text=continuation(model, text))
    return {}


def compared(model, text, output):
    expected = np.load(output / "expected.npz")
    gap = np.abs(ids_and_logits(model, text)[1] - expected["logits"]).max()
    return {
        "logits differ by": float(gap),
        "same text": continuation(model, text) == str(expected["text"]),
    }


def as_adapted(name, folder, text, output):
    """Also writes the model for the checks that follow."""
    model = adapted(name, folder, layers=[])
    found = compared(model, text, output)
    model.export(output / "exported", verbose=False)
    return found


def as_full_heads(name, folder, text, output):
    layers = "global" if name == "gemma3" else None
    return compared(adapted(name, folder, layers), text, output)


def from_saved_model(name, folder, text, output):
    expected = np.load(output / "expected.npz")
    ids = expected["ids"]
    loaded = tf.saved_model.load(str(output / "exported"))
    found = loaded.serve({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    return {"logits differ by": float(np.abs(found - expected["logits"]).max())}


def embeddings(name, folder, text, output):
    ids = np.random.default_rng(0).integers(1000, 20000, size=[4, 256])
    inputs = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.arange(256) < np.array([[256], [200], [100], [17]]),
    }

    def embed(model):
        states = np.asarray(model(inputs)["sequence_output"])
        sums = (states * inputs["padding_mask"][..., None]).sum(1)
        return sums / np.linalg.norm(sums, axis=-1, keepdims=True)

    theirs = embed(keras_hub.models.Backbone.from_preset(folder))
    return {"lowest cosine": float((theirs * embed(adapted(name, folder))).sum(-1).min())}


# For each model its checks, and their targets in words.
EQUAL = "1e-3, same"
OF_LANGUAGE_MODELS = {
    reference: "",
    as_adapted: EQUAL,
    as_full_heads: EQUAL,
    from_saved_model: "1e-3",
}
CHECKS = {
    "smollm2": OF_LANGUAGE_MODELS,
    "gemma3": OF_LANGUAGE_MODELS,
    "minilm": {embeddings: "1.000"},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="a long text, such as a book")
    for model in CHECKS:
        parser.add_argument(f"--{model}", metavar="DIR")
    args = parser.parse_args()
    text = Path(args.text).read_text(encoding="utf-8")
    # Memory of one check is free before the next.
    alone = {"max_tasks_per_child": 1, "mp_context": multiprocessing.get_context("spawn")}
    for model, checks in CHECKS.items():
        folder = getattr(args, model)
        if folder is None:
            continue
        with (
            tempfile.TemporaryDirectory() as output,
            concurrent.futures.ProcessPoolExecutor(1, **alone) as processes,
        ):
            for check, target in checks.items():
                found = processes.submit(check, model, folder, text, Path(output)).result()
                figures = ", ".join(f"{key}: {value:.3g}" for key, value in found.items())
                print(f"{model} | {check.__name__} | {figures} | {target}", flush=True)


if __name__ == "__main__":
    main()
