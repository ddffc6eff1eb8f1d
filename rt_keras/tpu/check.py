"""Compiles a configuration's training step ahead of time with the TPU compiler, for one core."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

# Of one chip: memory in bytes, bfloat16 operations and bytes of memory a second at their peaks.
# Source: the pages of TPU versions in Google's public Cloud TPU documentation.
CHIPS = {
    "v4": {"memory": 32 * 2**30, "operations": 275e12, "bandwidth": 1200e9},
    "v5e": {"memory": 16 * 2**30, "operations": 197e12, "bandwidth": 819e9},
    "v5p": {"memory": 95 * 2**30, "operations": 459e12, "bandwidth": 2765e9},
    "v6e": {"memory": 32 * 2**30, "operations": 918e12, "bandwidth": 1640e9},
}
COMPILER = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


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
        The serialized `HloModuleProto`, and a dict of what was lowered, with `step.sizes`.
    """
    from rt_keras.tpu.kernels import lower_for_tpu
    from rt_keras.tpu.step import sizes, training_step
    from rt_keras.training.config import load_config

    config = load_config(name, overrides)
    batch_size = batch_size or config.data.batch_size
    _progress(f"tracing the training step of {name}")
    step, specs, model = training_step(config, batch_size)
    if kernels:
        program = lower_for_tpu(step.get_concrete_function(*specs))
    else:
        program = step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    return program, {
        "config": name,
        "set": overrides,
        "batch_size": batch_size,
        "optimizer": config.optimizer.name,
        "compute": "bfloat16" if config.trainer.mixed_bfloat16 else "float32",
        "program_bytes": len(program),
        **sizes(model, specs),
    }


def compiled(program, tokens, topology):
    """Compiles a step, and divides what it needs by what the chip has.

    Args:
        program: a serialized `HloModuleProto`.
        tokens: how many it predicts.
        topology: the chips that it is for.

    Returns:
        A dict with what `compile.main` tells, and `held_bytes`, the memory at the peak:
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
    """What `compile.main` tells of a program, which another process compiles.

    Raises:
        ValueError: if it does not compile, with the reason in one line.
        RuntimeError: if the compiler ends without an answer.
    """
    script = Path(__file__).with_name("compile.py")
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


def _progress(line):
    print(line, file=sys.stderr, flush=True)
