"""`rt-keras tpu-check`: what a training step costs on Cloud TPU, known before anyone rents one.

The real TPU compiler, which needs no TPU, compiles the whole step for one core ahead of time.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

from rt_keras.files import write_json

# Of one chip: memory in bytes, bfloat16 operations and bytes of memory a second at their peaks.
# Source: the pages of TPU versions in Google's public Cloud TPU documentation.
CHIPS = {
    "v4": {"memory": 32 * 2**30, "operations": 275e12, "bandwidth": 1200e9},
    "v5e": {"memory": 16 * 2**30, "operations": 197e12, "bandwidth": 819e9},
    "v5p": {"memory": 95 * 2**30, "operations": 459e12, "bandwidth": 2765e9},
    "v6e": {"memory": 32 * 2**30, "operations": 918e12, "bandwidth": 1640e9},
}
COMPILER = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
EXAMPLE = "pg19_local_cluster8k --set trainer.mixed_bfloat16=true"


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Compiles a configuration's training step for one core of a Cloud TPU, without a TPU: "
        "whether it compiles and fits in memory, its operations, and the bytes that it accesses."
    )
    parser.epilog = f"example: rt-keras tpu-check --config {EXAMPLE}"
    parser.add_argument(
        "--config",
        required=True,
        metavar="NAME|FILE",
        help="what is to be trained; `rt-keras configs` lists the names",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the configuration, such as trainer.mixed_bfloat16=true",
    )
    parser.add_argument(
        "--topology",
        default="v5e:2x2",
        metavar="CHIP:SHAPE",
        help=f"the chips, of {', '.join(CHIPS)}, such as v5p:2x2x1 (v5e:2x2)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="sequences, or images, on each core; by default the configuration's data.batch_size",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="compile nothing, but look whether TensorFlow has a TPU kernel for every operation; "
        "needs tensorflow-tpu in the place of tensorflow",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here")


def main(args):
    """Checks one configuration, prints the report, and writes what was asked for.

    Args:
        args: what a parser with `add_arguments` found.

    Raises:
        ValueError: if an option is wrong, or if the step does not compile, or has an operation
            without a kernel, or does not fit in memory.
        ModuleNotFoundError: if a package is missing that the check needs.
    """
    chip = args.topology.partition(":")[0]
    if chip not in CHIPS:
        raise ValueError(
            f"--topology is {args.topology}; its chip must be one of {', '.join(CHIPS)}, such as "
            "v5e:2x2"
        )
    if args.batch is not None and args.batch < 1:
        raise ValueError(f"--batch is {args.batch}; it must be at least 1")
    check_packages({"tensorflow-tpu": "2.20.0"} if args.kernels else COMPILER)
    # TensorFlow for TPUs shall not ask the machines of Google's cloud what it runs on.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

    # In a process of its own, whose memory the compiler then has.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        lowered = pool.submit(lower, args.config, args.set, args.batch, args.kernels)
        program, figures = lowered.result()
    result = {"check": "tpu_kernels" if args.kernels else "tpu", **figures}
    if not args.kernels:
        result |= {"topology": args.topology, **compiled(program, figures["tokens"], args.topology)}
    print(report(result))
    if args.json:
        write_json(args.json, result)


def check_packages(wanted):
    """Raises where a package is not installed in the version that is known to work."""
    for name, version in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = None
        if found != version:
            packages = " ".join(f"{n}=={v}" for n, v in wanted.items())
            place = ", in an environment of its own" if "tensorflow-tpu" in wanted else ""
            raise ModuleNotFoundError(
                f"{name} {version} is needed, and {found or 'none'} is installed: "
                f"pip install {packages}{place}"
            )


def lower(name, overrides, batch_size, kernels):
    """The training step of a configuration as XLA takes it.

    Args:
        name: of the configuration.
        overrides: list of KEY=VALUE.
        batch_size: sequences, or images, on a core; None for those of the configuration.
        kernels: whether to take the kernels of TPUs, of which it is an error that one is missing.

    Returns:
        The serialized `HloModuleProto`, and a dict of what was lowered, with `tpu_step.sizes`.
    """
    from rt_keras.benchmarks import tpu_kernels, tpu_step
    from rt_keras.training.config import load_config

    config = load_config(name, overrides)
    batch_size = batch_size or config.data.batch_size
    _progress(f"tracing the training step of {name}")
    step, specs, model = tpu_step.training_step(config, batch_size)
    if kernels:
        program = tpu_kernels.lower_for_tpu(step.get_concrete_function(*specs))
    else:
        program = step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    return program, {
        "config": name,
        "set": overrides,
        "batch_size": batch_size,
        "optimizer": config.optimizer.name,
        "compute": "bfloat16" if config.trainer.mixed_bfloat16 else "float32",
        "program_bytes": len(program),
        **tpu_step.sizes(model, specs),
    }


def compiled(program, tokens, topology):
    """Compiles a step, and divides what it needs by what the chip has.

    Args:
        program: a serialized `HloModuleProto`.
        tokens: how many it predicts.
        topology: the chips that it is for.

    Returns:
        A dict with what `tpu_compile.main` tells, and `held_bytes`, the memory at the peak:
        arguments, outputs that take no argument's place, temporaries and code; `chip_bytes`, what
        the chip has; `operation_seconds` and `access_seconds` at its peak rates;
        `tokens_per_second` at the slower of these; and `compile_seconds`, here.
    """
    _progress(f"compiling {len(program) / 1e6:.0f} MB of program for {topology}")
    started = time.monotonic()
    found = compile_program(program, topology)
    chip = CHIPS[topology.partition(":")[0]]
    seconds = {
        "operation_seconds": found["operations"] / chip["operations"],
        "access_seconds": found["accessed_bytes"] / chip["bandwidth"],
    }
    return {
        **found,
        "held_bytes": found["argument_bytes"]
        + found["output_bytes"]
        - found["aliased_bytes"]
        + found["temporary_bytes"]
        + found["code_bytes"],
        "chip_bytes": chip["memory"],
        **seconds,
        "tokens_per_second": tokens / max(seconds.values()),
        "compile_seconds": time.monotonic() - started,
    }


def compile_program(hlo, topology):
    """What `tpu_compile.main` tells of a program, which another process compiles.

    Raises:
        ValueError: if it does not compile, with the reason in one line.
        RuntimeError: if the compiler ends without an answer.
    """
    script = Path(__file__).with_name("tpu_compile.py")
    with tempfile.TemporaryDirectory(prefix="rt-keras-tpu-") as folder:
        program, result = Path(folder) / "program", Path(folder) / "result"
        program.write_bytes(hlo)
        # The exit status says nothing: libtpu may crash once all is done.
        process = subprocess.run(
            [sys.executable, "-P", script, program, topology, result],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if not result.exists():
            if process.returncode == -signal.SIGKILL:
                raise MemoryError(
                    "the compiler was killed, as where this machine's memory runs out"
                )
            last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(
                f"the compiler ended with status {process.returncode} and without an answer: {last}"
            )
        found = json.loads(result.read_text(encoding="utf-8"))
    if "error" in found:
        raise ValueError(f"for {topology}: {reason(found['error'])}")
    return found


def reason(message):
    """The compiler's words in one line.

    >>> reason("RESOURCE_EXHAUSTED: XLA: no room. Used 20G of 15G hbm.\\n\\nTotal: 1\\n 2")
    'the step does not fit: no room. Used 20G of 15G hbm.'
    """
    first = " ".join(message.split("\n\n")[0].split())
    kind, _, rest = first.partition(": ")
    if kind == "RESOURCE_EXHAUSTED":
        return f"the step does not fit: {rest.rpartition('XLA: ')[2]}"
    return f"the step does not compile: {first}"


def report(result):
    """The figures in lines of text.

    Args:
        result: the dict that `main` makes.
    """
    heading = (
        f"{result['config']}: {result['parameters']:,} parameters, {result['compute']} compute, "
        f"{result['optimizer']}, {result['batch_size']} x "
        f"{result['tokens'] // result['batch_size']:,} tokens on each core"
    )
    if result["check"] == "tpu_kernels":
        return f"{heading}\nevery operation of the training step has a TPU kernel"
    memory = result["chip_bytes"]
    held = result["held_bytes"]
    lines = [
        heading,
        f"compiles for {result['topology']} and fits: {_gigabytes(held)} "
        f"of {_gigabytes(memory)}, {held / memory:.0%}",
    ]
    for name, key, what in (
        ("arguments", "argument_bytes", "weights, optimizer, centroids and batch"),
        ("outputs", "output_bytes", "of which the next line takes no room"),
        ("aliased", "aliased_bytes", "outputs in the place of arguments"),
        ("temporaries", "temporary_bytes", "activations, gradients and all else"),
        ("code", "code_bytes", "the program"),
    ):
        lines.append(f"  {name:12}{_gigabytes(result[key]):>12}  {what}")
    chip = result["topology"].partition(":")[0]
    lines += [
        f"operations      {result['operations'] / 1e12:8.3f} T   "
        f"{result['operation_seconds'] * 1e3:9.2f} ms at the peak of {chip} in bfloat16",
        f"bytes accessed  {_gigabytes(result['accessed_bytes']):>11}  "
        f"{result['access_seconds'] * 1e3:9.2f} ms at the peak of its memory",
        f"at these rates  {result['tokens_per_second']:,.0f} tokens a second on each core",
        f"not in it: the sum of the gradients over cores, {_gigabytes(result['gradient_bytes'])} "
        "a step, and the input",
    ]
    if result["loops"]:
        lines.append(f"nor more than one round of each of {result['loops']} loops")
    return "\n".join(lines)


def _gigabytes(number):
    return f"{number / 2**30:.3f} GiB"


def _progress(line):
    print(line, file=sys.stderr, flush=True)
