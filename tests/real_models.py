"""Adapted models beside the originals of KerasHub, on folders of real weights.

    python -m tests.real_models --text BOOK.txt --smollm2 DIR --gemma3 DIR --minilm DIR

runs every check of the given models, each in a separate process, and prints what it found with its
target. Folders have the layout of Hugging Face. `rt-keras benchmark pretrained` measures time and
memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HEADS = {"smollm2": 9, "gemma3": 4, "minilm": 12}
PROMPT_CHARACTERS, NEW_TOKENS = 400, 64


# What is loaded, and what it gives.


def adapted(name, folder, layers=None):
    import rt_keras
    from rt_keras.layers import FullHeads

    model = rt_keras.adapt(folder, [FullHeads(HEADS[name])], layers=layers)
    if hasattr(model, "generate"):
        model.compile(sampler="greedy")
    return model


def original(folder):
    import keras_hub

    model = keras_hub.models.CausalLM.from_preset(folder)
    model.compile(sampler="greedy")
    return model


def tokens(model, text, count):
    import numpy as np

    ids = np.asarray(model.preprocessor.tokenizer(text))[None, :count]
    assert ids.shape[1] == count, f"the text has only {ids.shape[1]} tokens"
    return ids


def logits(model, text):
    import numpy as np

    ids = tokens(model, text, 1024)
    return np.asarray(model({"token_ids": ids, "padding_mask": np.ones_like(ids)}))


def continuation(model, text):
    prompt = text[2000 : 2000 + PROMPT_CHARACTERS]
    length = len(model.preprocessor.tokenizer(prompt)) + 1 + NEW_TOKENS
    return model.generate(prompt, length, stop_token_ids=None)


# The checks: functions of a model's name, its folder and a text, run in processes of their own.


def reference(name, folder, text, output):
    import numpy as np

    model = original(folder)
    np.save(output / "logits.npy", logits(model, text))
    (output / "text.txt").write_text(continuation(model, text))
    return {}


def compared(model, text, output):
    import numpy as np

    gap = np.abs(logits(model, text) - np.load(output / "logits.npy")).max()
    same = continuation(model, text) == (output / "text.txt").read_text()
    return {"logits differ by": float(gap), "same text": same}


def as_adapted(name, folder, text, output):
    """Also writes the model for the checks that follow."""
    model = adapted(name, folder, layers=[])
    found = compared(model, text, output)
    model.save(output / "model.keras")
    model.save_to_preset(output / "preset")
    model.export(output / "exported", verbose=False)
    return found


def as_full_heads(name, folder, text, output):
    return compared(
        adapted(name, folder, layers="global" if name == "gemma3" else None), text, output
    )


def from_keras(name, folder, text, output):
    import keras

    import rt_keras.models  # noqa: F401

    model = keras.saving.load_model(output / "model.keras")
    model.compile(sampler="greedy")
    return compared(model, text, output)


def from_preset(name, folder, text, output):
    import keras_hub

    import rt_keras.models  # noqa: F401

    model = keras_hub.models.CausalLM.from_preset(str(output / "preset"))
    model.compile(sampler="greedy")
    return compared(model, text, output)


def from_saved_model(name, folder, text, output):
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  The operations of Gemma's tokenizer.

    ids = np.load(output / "ids.npy")
    loaded = tf.saved_model.load(str(output / "exported"))
    found = loaded.serve({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    return {"logits differ by": float(np.abs(found - np.load(output / "logits.npy")).max())}


def restored(name, folder, text, output):
    import numpy as np

    import rt_keras

    model = adapted(name, folder, layers=[])
    np.save(output / "ids.npy", tokens(model, text, 1024).astype("int32"))
    model = rt_keras.restore(model)
    model.compile(sampler="greedy")
    return compared(model, text, output)


def embeddings(name, folder, text, output):
    import keras_hub
    import numpy as np

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
    ours = embed(adapted(name, folder))
    return {"lowest cosine": float((theirs * ours).sum(-1).min())}


# For each model its checks by name, and their targets in words.
EQUAL = "1e-3, same"
OF_LANGUAGE_MODELS = {
    "original": (reference, ""),
    "layers=[]": (as_adapted, EQUAL),
    "FullHeads": (as_full_heads, EQUAL),
    "restored": (restored, EQUAL),
    "from .keras": (from_keras, EQUAL),
    "from a preset": (from_preset, EQUAL),
    "from a SavedModel": (from_saved_model, "1e-3"),
}
CHECKS = {
    "smollm2": OF_LANGUAGE_MODELS,
    "gemma3": OF_LANGUAGE_MODELS,
    "minilm": {"FullHeads": (embeddings, "1.000")},
}


def run_alone(model, check, folder, text, output):
    """The figures of a check in a new process."""
    command = [sys.executable, "-m", "tests.real_models", "--text", text, f"--{model}", folder]
    command += ["--check", check, "--output", output]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        return {"failed": result.returncode}
    return json.loads(result.stdout.splitlines()[-1])


def shown(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="a long text, such as a book")
    for model in CHECKS:
        parser.add_argument(f"--{model}", metavar="DIR")
    parser.add_argument("--check", help="one of the checks, by name")
    parser.add_argument("--output", help="folder of what checks leave to others")
    args = parser.parse_args()
    folders = {model: getattr(args, model) for model in CHECKS if getattr(args, model)}
    if args.output is not None:
        ((model, folder),) = folders.items()
        text = Path(args.text).read_text(encoding="utf-8")
        found = CHECKS[model][args.check][0](model, folder, text, Path(args.output))
        print(json.dumps(found))
        return
    for model, folder in folders.items():
        with tempfile.TemporaryDirectory() as output:
            for check, (_, target) in CHECKS[model].items():
                if args.check in (None, check):
                    found = run_alone(model, check, folder, args.text, output)
                    figures = ", ".join(f"{key}: {shown(value)}" for key, value in found.items())
                    print(f"{model} | {check} | {figures} | {target}", flush=True)


if __name__ == "__main__":
    main()
