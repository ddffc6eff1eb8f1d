"""`rt-keras quickstart`: trains and uses a small model in about five minutes.

The model learns the source of Python's standard library. The command also evaluates it, generates a
sample and exports it.

example: rt-keras quickstart --output runs/quickstart
"""

import tempfile
import time
from pathlib import Path

from rt_keras import files
from rt_keras.cli.evaluate import evaluate
from rt_keras.cli.options import add_options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    add_options(parser, {"--output DIR": "folder of the run (default: a new temporary folder)"})


def main(args):
    """Trains, evaluates, samples from and exports a small model."""
    import keras_hub
    import numpy as np

    from rt_keras.serving.saved_model import export_saved_model
    from rt_keras.serving.score import score_in_new_process
    from rt_keras.serving.signatures import scoring_function
    from rt_keras.training import baselines, run
    from rt_keras.training import config as config_lib
    from rt_keras.training.experiment import Experiment, load_model

    started = time.monotonic()
    output = Path(args.output or tempfile.mkdtemp(prefix="rt-keras-quickstart-"))
    files.check_new_folder(output)
    config = config_lib.load_config("quickstart")
    training_figures = run.train(config, output)
    model = load_model(output)
    experiment = Experiment(config)
    training, test = map(experiment.load_split, ("train", "test"))
    scores = evaluate(model, experiment.task, test, "the held-out files")
    held_out = list(test.as_numpy_iterator())
    gzip = baselines.gzip_bits_per_byte(held_out)
    bigram = baselines.bigram_bits_per_byte(training.as_numpy_iterator(), held_out)
    print(f"for comparison: gzip -9 {gzip:.4f} bits per byte, byte bigram {bigram:.4f}")
    model.compile(sampler=keras_hub.samplers.RandomSampler(temperature=0.8, seed=0))
    sample = model.generate("def ", max_length=200)
    print(f"a sample:\n{sample}")

    saved_model = export_saved_model(model, output / "saved_model")
    ids = [model.preprocessor.tokenizer(held_out[0])[:200].numpy().tolist()]
    here = scoring_function(model)(ids)["log_probabilities"]
    agrees = np.allclose(here, score_in_new_process(saved_model, ids), atol=1e-4)
    print(f"exported to {saved_model}")
    seconds = time.monotonic() - started
    print(f"finished in {seconds:.0f} s; everything is in {output}")
    error = "the exported model's scores in a new process differ from those of the model here"
    return {
        **({} if agrees else {"error": error}),
        "bits_per_byte": scores["bits_per_byte"],
        "gzip_bits_per_byte": gzip,
        "bigram_bits_per_byte": bigram,
        "seconds": seconds,
        "export_agrees": bool(agrees),
        "training": training_figures,
        "evaluation": scores,
        "sample": sample,
    }
