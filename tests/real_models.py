"""Adapted models beside the originals of KerasHub, on folders of real weights.

    python -m tests.real_models --text BOOK.txt --smollm2 DIR --gemma3 DIR --minilm DIR

runs every check of the given models, each in a separate process, and prints the measured figures
with their targets. It takes about half an hour on two cores that do nothing else, and
8 GB. Folders have the layout of Hugging Face.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEADS = {"smollm2": 9, "gemma3": 4, "minilm": 12}
PROMPT_CHARACTERS, NEW_TOKENS = 400, 64


# What is loaded, and how it is measured.


def adapted(name, folder, kind="full", layers=None):
    import rt_keras
    from rt_keras.layers import FullHeads, LocalHeads

    heads = FullHeads(HEADS[name])
    if kind == "local":
        heads = LocalHeads(HEADS[name], block_size=256)
    model = rt_keras.adapt(folder, [heads], layers=layers)
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


def gigabytes():
    """The memory of this process, at most, and now."""
    now = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, now / 1e9


def seconds(function, runs=3):
    """The time of the first call, with compilation, and the median of others."""
    times = []
    for _ in range(1 + runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times[0], statistics.median(times[1:])


def prefill(model, text, count):
    """Figures of a prompt of so many tokens and one new one."""
    import numpy as np

    ids, before = tokens(model, text, count), gigabytes()[1]
    inputs = {
        "token_ids": np.pad(ids, [[0, 0], [0, 1]]),
        "padding_mask": np.arange(count + 1)[None] < count,
    }
    # Gemma's own generate() fails on token ids; it calls this function on a batch.
    tensors = {name: np.asarray(x, "int32") for name, x in inputs.items()}
    generate = model.make_generate_function()
    found = {}
    if hasattr(model, "read"):
        # Without the program that samples, and what compiling it takes.
        model.read(ids, max_length=count + 1, verbose=0)
        found["gigabytes to read"] = gigabytes()[0] - before
    first, later = seconds(lambda: generate(tensors, stop_token_ids=None), runs=2)
    found |= {"first, seconds": first, "later, seconds": later}
    return {**found, "gigabytes": gigabytes()[0] - before}


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


def loading(name, folder, text, output):
    import tensorflow as tf

    tf.zeros([1])
    import rt_keras.models  # noqa: F401

    before = gigabytes()[1]
    start = time.perf_counter()
    model = adapted(name, folder, "local" if name == "smollm2" else "full", layers=None)
    passed = time.perf_counter() - start
    weights = sum(weight.numpy().nbytes for weight in model.weights) / 1e9
    return {"seconds": passed, "times the weights": (gigabytes()[0] - before) / weights}


def prefill_of_original(count):
    return lambda name, folder, text, output: prefill(original(folder), text, count)


def prefill_of(kind, count, layers=None):
    return lambda name, folder, text, output: prefill(
        adapted(name, folder, kind, layers), text, count
    )


def uneven_batch(name, folder, text, output):
    model = adapted(name, folder, "local")
    tokenizer = model.preprocessor.tokenizer
    ids = tokens(model, text, 6000)[0]
    long, short = (tokenizer.detokenize(ids[:count]) for count in (6000, 20))

    def generate(prompts, new):
        return seconds(
            lambda: model.generate(prompts, max_new_tokens=new, stop_token_ids=None), runs=3
        )[1]

    return {
        f"{new} new tokens, times one prompt's": generate([long, short], new)
        / generate([long], new)
        for new in (1, 16)
    }


def kept_prefill(name, folder, text, output):
    model = adapted(name, folder, "local")
    ids = tokens(model, text, 6000)
    read = seconds(lambda: model.read(ids, max_length=6200, verbose=0), runs=2)[1]
    state = model.read(ids, max_length=6200, verbose=0)
    question = " What did the captain say to the boy?"
    ask = seconds(
        lambda: model.generate(question, state=state, max_new_tokens=1, stop_token_ids=None)
    )[1]
    return {"reading, seconds": read, "a question, seconds": ask, "share": ask / read}


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
CHECKS = {
    "smollm2": {
        "original": (reference, ""),
        "layers=[]": (as_adapted, EQUAL),
        "FullHeads": (as_full_heads, EQUAL),
        "restored": (restored, EQUAL),
        "from .keras": (from_keras, EQUAL),
        "from a preset": (from_preset, EQUAL),
        "from a SavedModel": (from_saved_model, "1e-3"),
        "adapt": (loading, "20 s, 1.3"),
        "prefill of 8,000: KerasHub": (prefill_of_original(8000), ""),
        "prefill of 8,000: FullHeads": (prefill_of("full", 8000), "KerasHub's time"),
        "prefill of 8,000: LocalHeads": (prefill_of("local", 8000), "half of it, 0.4 GB"),
        "prompts of 6,000 and 20": (uneven_batch, "1.2"),
        "kept prefill of 6,000": (kept_prefill, "0.1"),
    },
    "gemma3": {
        "original": (reference, ""),
        "layers=[]": (as_adapted, EQUAL),
        'FullHeads, layers="global"': (as_full_heads, EQUAL),
        "restored": (restored, EQUAL),
        "from .keras": (from_keras, EQUAL),
        "from a preset": (from_preset, EQUAL),
        "from a SavedModel": (from_saved_model, "1e-3"),
        "adapt": (loading, "20 s, 1.3"),
        "prefill of 8,192: KerasHub": (prefill_of_original(8192), ""),
        "prefill of 8,192: layers=[]": (prefill_of("full", 8192, []), "a third of it"),
        "prefill of 16,384: layers=[]": (prefill_of("full", 16384, []), "8 GB"),
    },
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
