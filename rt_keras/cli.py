"""The command line `rt-keras`.

TensorFlow is imported by the commands that compute, so that `--help` and `configs` answer at once.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from rt_keras import files

SAMPLERS = ("random", "greedy", "top_k", "top_p", "beam", "contrastive")


def main(argv=None):
    """Runs one command.

    An error is one line on standard error; with `RT_KERAS_TRACE` in the environment it is raised.

    Args:
        argv: list of arguments; by default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, or 130 when interrupted.

    >>> main(["configs"])
    arxiv_local24k ...
    0
    """
    # TensorFlow's own log would drown the one line that says what is wrong.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    arguments = _parse(argv)
    try:
        figures = arguments.run(arguments)
        # The benchmarks write their own.
        if arguments.json and figures is not None:
            files.write_json(arguments.json, figures)
            print(f"wrote {arguments.json}")
    except KeyboardInterrupt:
        print("rt-keras: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if "RT_KERAS_TRACE" in os.environ:
            raise
        # The message of an error that was foreseen is enough; of others the kind says more.
        foreseen = isinstance(error, (ValueError, OSError, ArithmeticError, ModuleNotFoundError))
        message = " ".join(str(error).split())
        kind = "" if foreseen else f"{type(error).__name__}: "
        print(f"rt-keras: error: {kind}{message}", file=sys.stderr)
        return 1
    return 0


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="rt-keras",
        description="Trains, evaluates, samples and exports Routing Transformers.",
        epilog="example: rt-keras quickstart",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_configs(commands)
    _add_train(commands)
    _add_evaluate(commands)
    _add_generate(commands)
    _add_export(commands)
    _add_convert(commands)
    _add_analyze(commands)
    _add_benchmarks(commands)
    _add_tpu_check(commands)
    _add_quickstart(commands)
    return parser.parse_args(argv)


def _add_command(commands, run, summary, example):
    """A parser for the command that `run` is; every command can write the figures it prints."""
    name = run.__name__
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example: rt-keras {name} {example}",
    )
    command.add_argument("--json", metavar="FILE", help="write the figures that are printed here")
    command.set_defaults(run=run)
    return command


def _add_model(command):
    command.add_argument(
        "--model", required=True, metavar="DIR", help="folder of a run, or of a preset"
    )


def _add_configs(commands):
    _add_command(commands, configs, "list the published configurations", "--json configs.json")


def configs(arguments):
    """Lists the published configurations, each with the comment that its file starts with."""
    summaries = {}
    for path in sorted(files.config_folder().glob("*.yaml")):
        summaries[path.stem] = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:{width}}  {summary}")
    return summaries


def _add_train(commands):
    command = _add_command(
        commands,
        train,
        "train a model",
        "--config books --set data.directory=my/books --output runs/books",
    )
    command.add_argument(
        "--config", metavar="NAME|FILE", help="what to train; `rt-keras configs` lists the names"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the configuration, such as optimizer.learning_rate=5e-4",
    )
    command.add_argument("--output", required=True, metavar="DIR", help="folder of the run")
    command.add_argument(
        "--resume", action="store_true", help="go on with the run in DIR, by its own configuration"
    )
    command.add_argument("--overwrite", action="store_true", help="delete the run in DIR first")


def train(arguments):
    """Trains as a configuration says."""
    from rt_keras.training import config as config_lib

    name, saved = arguments.config, Path(arguments.output) / "config.yaml"
    if name is None and arguments.resume and saved.exists():
        name = saved
    if name is None:
        raise ValueError("--config is missing; `rt-keras configs` lists the published ones")
    config = config_lib.load_config(name, arguments.set)
    return _train(config, arguments.output, arguments.resume, arguments.overwrite)


def _train(config, output, resume=False, overwrite=False):
    from rt_keras.training import run

    figures = run.train(config, output, resume, overwrite, verbose=1 if _on_terminal() else 2)
    print(
        f"trained {figures['parameters']:,} parameters for {figures['steps']:,} steps "
        f"in {figures['seconds']:.0f} s, {figures['tokens_per_second']:,.0f} tokens a second\n"
        f"the best model, of step {figures['best_step']:,} with "
        f"{figures['validation_nats_per_token']:.3f} nats per token on validation, "
        f"is in {Path(output) / 'model'}"
    )
    return figures


def _add_evaluate(commands):
    command = _add_command(
        commands,
        evaluate,
        "score a model on held-out texts or images",
        "--model runs/books --split test --json scores.json",
    )
    _add_model(command)
    _add_examples(command)


def _add_examples(command):
    command.add_argument(
        "--data",
        metavar="NAME|DIR",
        help="a data set, such as python_source, pg19 or cifar10, or a folder of text files, or of "
        "pairs; by default what it was trained on",
    )
    command.add_argument(
        "--split", default="test", help="train, validation or test; by default test"
    )


def evaluate(arguments):
    """Scores a model on one split."""
    return _evaluate(*_model_and_examples(arguments))


def _model_and_examples(arguments):
    """The model that a command names, the examples, and what they are called."""
    from rt_keras.training import config as config_lib
    from rt_keras.training import datasets, experiment

    model = experiment.load_model(arguments.model)
    kind = experiment.kind_of(model)
    run = Path(arguments.model) / "config.yaml"
    if arguments.data is not None:
        config = _data_config(arguments.data, kind)
    elif run.exists():
        config = config_lib.load_config(run).data
    else:
        raise ValueError(f"--data is missing; {arguments.model} does not say what to evaluate on")
    examples = datasets.load_split(kind, config, arguments.split, model.preprocessor)
    return model, examples, f"the {arguments.split} split of {config.name}"


def _data_config(name_or_folder, kind):
    from rt_keras.training.config import DataConfig

    if Path(name_or_folder).is_dir():
        folder = "pairs_folder" if kind == "seq_2_seq_lm" else "text_folder"
        return DataConfig(name=folder, directory=name_or_folder)
    # Names of sets of pairs have a slash too.
    if kind != "seq_2_seq_lm" and os.sep in name_or_folder:
        raise FileNotFoundError(f"--data is {name_or_folder}; there is no such folder")
    return DataConfig(name=name_or_folder)


def _evaluate(model, examples, name):
    from rt_keras.training import evaluation

    print(f"evaluating on {name}", flush=True)
    scores = evaluation.evaluate(model, examples, verbose=1 if _on_terminal() else 0)
    for key, digits in (
        ("bits_per_byte", ".4f"),
        ("bits_per_dimension", ".4f"),
        ("nats_per_token", ".4f"),
        ("perplexity_per_token", ",.3f"),
        ("perplexity_per_word", ",.1f"),
    ):
        if key in scores:
            print(f"{scores[key]:{digits}} {key.replace('_', ' ')}")
    counts = [f"{value:,} {key}" for key, value in scores.items() if isinstance(value, int)]
    print(f"of {', '.join(counts[:-1])} and {counts[-1]}")
    return scores


def _add_generate(commands):
    command = _add_command(
        commands,
        generate,
        "continue a text, write one from another, or complete an image",
        "--model runs/books --prompt 'It was a dark' --max-length 200",
    )
    _add_model(command)
    command.add_argument(
        "--prompt",
        nargs="+",
        metavar="TEXT",
        help="what to continue; for an encoder-decoder, what it reads. Several are one batch",
    )
    command.add_argument(
        "--max-length",
        type=int,
        default=256,
        metavar="N",
        help="tokens, those of the prompt and its start token included; by default 256",
    )
    command.add_argument(
        "--sampler",
        choices=SAMPLERS,
        default="random",
        help="how the next token is chosen; by default random",
    )
    command.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="the lower, the surer: what the logits are divided by; by default 0.8",
    )
    command.add_argument(
        "--top-k",
        type=int,
        metavar="K",
        help="tokens that top_k, top_p and contrastive choose from; by default 5, all and 5",
    )
    command.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="share of probability that top_p draws from; by default 0.9",
    )
    command.add_argument(
        "--num-beams", type=int, metavar="N", help="continuations that beam weighs; by default 5"
    )
    command.add_argument(
        "--stop",
        metavar="TOKEN",
        nargs="+",
        help="tokens that end a text, as the tokenizer names them; by default its end of text",
    )
    command.add_argument("--seed", type=int, default=0, help="of the random draws; by default 0")
    command.add_argument(
        "--stream", action="store_true", help="print the text as it comes; for one prompt"
    )
    images = command.add_argument_group("for image models")
    images.add_argument("--image", metavar="FILE", help="a picture to complete; by default none")
    images.add_argument(
        "--known-rows", type=int, default=0, metavar="N", help="rows of it that stay, from the top"
    )
    images.add_argument("--label", type=int, metavar="N", help="class, for models of classes")
    images.add_argument("--output", metavar="FILE", help="the PNG file to write")


def generate(arguments):
    """Continues texts, writes one from another, or completes an image."""
    from rt_keras.training import experiment

    if arguments.max_length < 1:
        raise ValueError(f"--max-length is {arguments.max_length}; it must be above 0")
    if not arguments.temperature > 0:
        raise ValueError(f"--temperature is {arguments.temperature}; it must be above 0")
    model = experiment.load_model(arguments.model)
    kind = experiment.kind_of(model)
    if kind == "image_lm":
        return _generate_image(model, arguments)
    if arguments.prompt is None:
        raise ValueError("--prompt is missing: the text to start from")
    model.compile(sampler=_make_sampler(arguments))
    stop = _stop_tokens(model.preprocessor.tokenizer, arguments.stop)
    if arguments.stream:
        if kind != "causal_lm" or len(arguments.prompt) > 1:
            raise ValueError("--stream is for one --prompt of a causal language model")
        return {"text": _stream(model, arguments.prompt[0], arguments.max_length, stop)}
    prompts = arguments.prompt
    if kind == "seq_2_seq_lm":
        prompts = {"encoder_text": prompts, "decoder_text": [""] * len(prompts)}
    texts = model.generate(prompts, max_length=arguments.max_length, stop_token_ids=stop)
    print("\n\n".join(texts))
    return {"text": texts[0]} if len(texts) == 1 else {"texts": texts}


def _stop_tokens(tokenizer, names):
    if names is None:
        return [tokenizer.end_token_id]
    return [tokenizer.token_to_id(name) for name in names]


def _stream(model, prompt, max_length, stop_token_ids):
    from rt_keras.models.streaming import stream

    pieces = []
    for piece in stream(model, prompt, max_length, stop_token_ids):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    return "".join(pieces)


def _make_sampler(arguments):
    """KerasHub's sampler of the name, with the options that it takes."""
    from keras_hub import samplers

    given = {"k": arguments.top_k, "p": arguments.top_p, "num_beams": arguments.num_beams}
    options = {name: value for name, value in given.items() if value is not None}
    takes = {"top_k": {"k"}, "top_p": {"k", "p"}, "beam": {"num_beams"}, "contrastive": {"k"}}
    names = {"k": "--top-k", "p": "--top-p", "num_beams": "--num-beams"}
    for name, value in options.items():
        if name not in takes.get(arguments.sampler, ()):
            raise ValueError(f"{names[name]} is {value}; sampler {arguments.sampler} has none")
        if not (0 < value <= 1 if name == "p" else value >= 1):
            allowed = "above 0 and at most 1" if name == "p" else "at least 1"
            raise ValueError(f"{names[name]} is {value}; it must be {allowed}")
    if arguments.sampler == "greedy":
        return samplers.GreedySampler()
    if arguments.sampler in ("random", "top_k", "top_p"):
        options["seed"] = arguments.seed
    if arguments.sampler == "top_p":
        options.setdefault("p", 0.9)
    kinds = {
        "random": samplers.RandomSampler,
        "top_k": samplers.TopKSampler,
        "top_p": samplers.TopPSampler,
        "beam": samplers.BeamSampler,
        "contrastive": samplers.ContrastiveSampler,
    }
    return kinds[arguments.sampler](**options, temperature=arguments.temperature)


def _generate_image(model, arguments):
    import keras
    import numpy as np

    if arguments.output is None:
        raise ValueError("--output is missing: the PNG file that the image is written to")
    shape = model.backbone.image_shape
    images = np.zeros((1, *shape), "int32")
    if arguments.image is not None:
        mode = "grayscale" if shape[2] == 1 else "rgb"
        picture = keras.utils.load_img(arguments.image, color_mode=mode, target_size=shape[:2])
        images[0] = keras.utils.img_to_array(picture)
    elif arguments.known_rows:
        raise ValueError(f"--known-rows is {arguments.known_rows}, but no --image has them")
    inputs = {"images": images}
    if model.backbone.num_classes is not None:
        if arguments.label is None or not 0 <= arguments.label < model.backbone.num_classes:
            last = model.backbone.num_classes - 1
            raise ValueError(f"--label is {arguments.label}; it must be from 0 to {last}")
        inputs["labels"] = np.array([arguments.label], "int32")
    image = model.generate(inputs, arguments.known_rows, arguments.temperature, arguments.seed)[0]
    with files.whole_file(arguments.output, suffix=".png") as part:
        keras.utils.save_img(part, image, file_format="png", scale=False)
    print(f"wrote the image {arguments.output}, {shape[1]} x {shape[0]} pixels")
    return {"image": arguments.output}


def _add_export(commands):
    command = _add_command(
        commands,
        export,
        "write a model as a SavedModel",
        "--model runs/books --output exported/books",
    )
    _add_model(command)
    command.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder of the versions, which gets the next; or of one, where its name is a number",
    )
    command.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="the most tokens that a sequence may have; by default as many as the model has "
        "positions, else 65,536",
    )


def export(arguments):
    """Writes a model as a SavedModel."""
    from rt_keras.serving import export_saved_model
    from rt_keras.serving.foreign_ops import foreign_ops
    from rt_keras.training import experiment

    model = experiment.load_model(arguments.model)
    if experiment.kind_of(model) != "causal_lm":
        raise ValueError(f"{arguments.model} holds no causal language model")
    path = export_saved_model(model, arguments.output, arguments.max_length)
    print(f"wrote the SavedModel {path}: score, score_text and generate")
    foreign = foreign_ops(path)
    for name, reason in foreign.items():
        print(f"its operation {name} is {reason}")
    return {"saved_model": str(path), "foreign_ops": foreign}


def _add_convert(commands):
    summary = "take over checkpoints that others trained"
    command = commands.add_parser(
        "convert", help=summary, epilog="example: rt-keras convert t2t --help"
    )
    kinds = command.add_subparsers(required=True, metavar="KIND")
    summary = "a checkpoint of the paper's authors' TensorFlow 1 code, as a preset"
    t2t = kinds.add_parser(
        "t2t",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. Other commands take it as --model.",
        epilog="example: rt-keras convert t2t --checkpoint pg19/model.ckpt-0 --hparams "
        "pg19/hparams.json --vocabulary vocab.pg19_length8k.32768.subwords --output models/pg19",
    )
    t2t.add_argument(
        "--checkpoint", required=True, metavar="PATH", help="the checkpoint without its suffix"
    )
    t2t.add_argument("--hparams", required=True, metavar="FILE", help="its hparams.json")
    t2t.add_argument(
        "--vocabulary", metavar="FILE", help="its subwords, one quoted a line; text models need it"
    )
    t2t.add_argument(
        "--image-shape",
        type=int,
        nargs=3,
        metavar=("HEIGHT", "WIDTH", "CHANNELS"),
        help="what images it was trained on; only for image models",
    )
    t2t.add_argument(
        "--num-classes", type=int, metavar="N", help="classes of a class-conditional image model"
    )
    t2t.add_argument(
        "--not-strict",
        action="store_true",
        help="leave out what is not found, or has no place, in place of refusing the checkpoint",
    )
    t2t.add_argument("--output", required=True, metavar="DIR", help="a new or empty folder")
    t2t.add_argument("--json", metavar="FILE", help="write the figures that are printed here")
    t2t.set_defaults(run=convert_t2t)


def convert_t2t(arguments):
    """Writes a checkpoint of the paper's authors' code as a preset."""
    from rt_keras.convert import convert_t2t_checkpoint

    task = convert_t2t_checkpoint(
        arguments.checkpoint,
        arguments.hparams,
        arguments.output,
        vocabulary=arguments.vocabulary,
        image_shape=arguments.image_shape,
        num_classes=arguments.num_classes,
        strict=not arguments.not_strict,
    )
    parameters = task.count_params()
    print(f"wrote a {type(task).__name__} of {parameters:,} parameters to {arguments.output}")
    return {"preset": arguments.output, "model": type(task).__name__, "parameters": parameters}


def _add_analyze(commands):
    summary = "look at what a model's attention does"
    analyze = commands.add_parser(
        "analyze", help=summary, epilog="example: rt-keras analyze causality --help"
    )
    kinds = analyze.add_subparsers(required=True, metavar="KIND")
    summary = "how much a language model sees of its future"
    causality = kinds.add_parser(
        "causality",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}: what changes before a change of the text, "
        "and the loss scored in parallel and prefix by prefix.",
        epilog="example: rt-keras analyze causality --model runs/books --json causality.json",
    )
    _add_model(causality)
    _add_examples(causality)
    for name, default, what in (
        ("sequences", 4, "sequences of the split that are looked at"),
        ("positions", 16, "places of a change in each, and prefixes of each that are scored"),
        ("changes", 2, "other futures tried at each place"),
        ("seed", 0, "of the random draws"),
    ):
        causality.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{what}; by default {default}",
        )
    causality.add_argument("--json", metavar="FILE", help="write the figures that are printed here")
    causality.set_defaults(run=analyze_causality)


def analyze_causality(arguments):
    """Measures how much a language model sees of its future."""
    import numpy as np

    from rt_keras.analysis import causality
    from rt_keras.training import datasets, experiment

    if arguments.sequences < 1:
        raise ValueError(f"--sequences is {arguments.sequences}; it must be at least 1")
    model, documents, name = _model_and_examples(arguments)
    if experiment.kind_of(model) != "causal_lm":
        raise ValueError(f"{arguments.model} holds no causal language model")
    batches = datasets.evaluation_batches("causal_lm", documents, 1, model.preprocessor)
    rows = [
        np.concatenate([inputs["token_ids"][0, :1], labels[0]])
        for inputs, labels, weights in batches.take(arguments.sequences).as_numpy_iterator()
        if weights.all()
    ]
    if not rows:
        raise ValueError(f"{name} is shorter than one sequence of the model")
    print(f"changing the future of {len(rows)} sequences of {name}", flush=True)
    figures = causality.measure(
        model,
        np.stack(rows),
        num_positions=arguments.positions,
        num_changes=arguments.changes,
        seed=arguments.seed,
        verbose=1 if _on_terminal() else 0,
    )
    print(causality.report(figures))
    return figures


def _add_benchmarks(commands):
    summary = "measure speed, memory and learning"
    benchmark = commands.add_parser(
        "benchmark", help=summary, epilog="example: rt-keras benchmark attention"
    )
    kinds = benchmark.add_subparsers(required=True, metavar="KIND")
    for name, summary in (
        ("attention", "time and memory of every kind of attention"),
        ("model", "tokens a second in training"),
        ("decode", "what a token costs in generation"),
        ("recall", "which kinds of heads learn to repeat what lies far back"),
        ("compare", "what has become slower from one file of figures to another"),
        ("plot", "draw the figures of the attention"),
    ):
        module = importlib.import_module(f"rt_keras.benchmarks.{name}")
        command = kinds.add_parser(name, help=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.main)


def _add_tpu_check(commands):
    tpu_check = importlib.import_module("rt_keras.benchmarks.tpu_check")
    command = commands.add_parser("tpu-check", help="what a training step costs on Cloud TPU")
    tpu_check.add_arguments(command)
    command.set_defaults(run=tpu_check.main)


def _add_quickstart(commands):
    command = _add_command(
        commands,
        quickstart,
        "train a small model on Python's own source and use it, in about five minutes",
        "--output runs/quickstart",
    )
    command.add_argument(
        "--output", metavar="DIR", help="folder of the run; by default a new temporary one"
    )


def quickstart(arguments):
    """Trains, evaluates, samples and exports a small model of Python's standard library."""
    import keras_hub
    import numpy as np

    from rt_keras.serving import export_saved_model, scoring_function
    from rt_keras.serving.score import score_in_new_process
    from rt_keras.training import baselines, datasets, experiment
    from rt_keras.training import config as config_lib

    started = time.monotonic()
    output = Path(arguments.output or tempfile.mkdtemp(prefix="rt-keras-quickstart-"))
    files.check_new_folder(output)
    config = config_lib.load_config("quickstart")
    print("training on the source of Python's standard library", flush=True)
    training_figures = _train(config, output)
    model = experiment.load_model(output)
    training, test = (
        datasets.load_split("causal_lm", config.data, split, model.preprocessor)
        for split in ("train", "test")
    )
    scores = _evaluate(model, test, "the files that were held out")
    held_out = list(test.as_numpy_iterator())
    gzip = baselines.gzip_bits_per_byte(held_out)
    bigram = baselines.bigram_bits_per_byte(training.as_numpy_iterator(), held_out)
    print(f"gzip -9 needs {gzip:.4f} bits per byte for them, and a byte bigram {bigram:.4f}")
    print("a sample of it:", flush=True)
    model.compile(sampler=keras_hub.samplers.RandomSampler(temperature=0.8, seed=0))
    sample = model.generate("def ", max_length=200)
    print(sample)

    saved_model = export_saved_model(model, output / "saved_model")
    ids = [model.preprocessor.tokenizer(held_out[0])[:200].numpy().tolist()]
    here = scoring_function(model)(ids)["log_probabilities"]
    agrees = np.allclose(here, score_in_new_process(saved_model, ids), atol=1e-4)
    verdict = "the same scores" if agrees else "DIFFERENT SCORES"
    print(f"exported to {saved_model}, which gives {verdict} in a new process")
    seconds = time.monotonic() - started
    print(f"all in {seconds:.0f} s; everything is in {output}")
    return {
        "bits_per_byte": scores["bits_per_byte"],
        "gzip_bits_per_byte": gzip,
        "bigram_bits_per_byte": bigram,
        "seconds": seconds,
        "export_agrees": bool(agrees),
        "training": training_figures,
        "evaluation": scores,
        "sample": sample,
    }


def _on_terminal():
    return sys.stdout.isatty()
