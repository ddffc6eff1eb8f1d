"""Compiles a configuration's training step ahead of time with the TPU compiler, for one core."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from rt_keras import progress

# Each chip's memory in bytes, peak bfloat16 operations per second and peak bytes per second.
# Source: the pages on TPU versions in Google's public Cloud TPU documentation.
CHIPS = {
    "v4": {"memory": 32 * 2**30, "operations": 275e12, "bandwidth": 1200e9},
    "v5e": {"memory": 16 * 2**30, "operations": 197e12, "bandwidth": 819e9},
    "v5p": {"memory": 95 * 2**30, "operations": 459e12, "bandwidth": 2765e9},
    "v6e": {"memory": 32 * 2**30, "operations": 918e12, "bandwidth": 1640e9},
}
COMPILER = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


def check_packages(wanted):
    """Raises a ModuleNotFoundError unless packages are installed in versions known to work.

    Args:
        wanted: dictionary from packages to versions.
    """
    for name, version in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = None
        if found != version:
            packages = " ".join(f"{n}=={v}" for n, v in wanted.items())
            place = " in a separate environment" if "tensorflow-tpu" in wanted else ""
            raise ModuleNotFoundError(
                f"{name} {version} is required, but {found or 'none'} is installed: "
                f"pip install {packages}{place}"
            )


def lower(name, overrides, batch_size, kernels):
    """Lowers the training step of a configuration to XLA.

    Args:
        name: string, the configuration.
        overrides: list of strings, KEY=VALUE.
        batch_size: int, the number of sequences or images on a core; None for that of the
            configuration.
        kernels: bool, whether to use the kernels of TPUs instead of those of this machine.

    Returns:
        The serialized `HloModuleProto`, and a dictionary that describes the step, with the `sizes`
        of `rt_keras.tpu.step`.

    Raises:
        ValueError: if an operation has no TPU kernel.
    """
    from rt_keras.tpu.kernels import lower_for_tpu
    from rt_keras.tpu.step import sizes, training_step
    from rt_keras.training.config import load_config

    config = load_config(name, overrides)
    batch_size = batch_size or config.data.batch_size
    with progress.bar(f"tracing the training step of {name}"):
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
    """Compiles a step and relates what it needs to what the chip has.

    Args:
        program: bytes, a serialized `HloModuleProto`.
        tokens: int, the number of tokens that it predicts.
        topology: string, the chips to compile for.

    Returns:
        A dictionary of what `rt_keras.tpu.compile.main` reports, and `held_bytes`, the peak memory
        of arguments, outputs not aliased, temporaries and code; `chip_bytes`, the memory of
        the chip; `operation_seconds` and `access_seconds` at its peak rates; `tokens_per_second` at
        the slower of these; and `compile_seconds` on this machine.
    """
    started = time.monotonic()
    with progress.bar(f"compiling {len(program) / 1e6:.0f} MB of program for {topology}"):
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
    """Compiles a program in a process of its own.

    Args:
        hlo: bytes, a serialized `HloModuleProto`.
        topology: string, the chips to compile for.

    Returns:
        The dictionary that `rt_keras.tpu.compile.main` writes.

    Raises:
        ValueError: if the program does not compile, with the reason in one line.
        MemoryError: if the compiler was killed.
        RuntimeError: if the compiler ended without a result.
    """
    script = Path(__file__).with_name("compile.py")
    with tempfile.TemporaryDirectory(prefix="rt-keras-tpu-") as folder:
        program, result = Path(folder) / "program", Path(folder) / "result"
        program.write_bytes(hlo)
        # The exit status says nothing, since libtpu may crash once everything is done.
        process = subprocess.run(
            [sys.executable, "-P", script, program, topology, result],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if not result.exists():
            if process.returncode == -signal.SIGKILL:
                raise MemoryError("the compiler was killed, perhaps because memory ran out")
            last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(
                f"the compiler ended with status {process.returncode} and without a result: {last}"
            )
        found = json.loads(result.read_text(encoding="utf-8"))
    if "error" in found:
        raise ValueError(f"for {topology}: {reason(found['error'])}")
    return found


def reason(message):
    """The compiler's message in one line.

    Args:
        message: string.

    >>> reason("RESOURCE_EXHAUSTED: XLA: no room. Used 20G of 15G hbm.\\n\\nTotal: 1\\n 2")
    'the step does not fit: no room. Used 20G of 15G hbm.'
    """
    first = " ".join(message.split("\n\n")[0].split())
    kind, _, rest = first.partition(": ")
    if kind == "RESOURCE_EXHAUSTED":
        return f"the step does not fit: {rest.rpartition('XLA: ')[2]}"
    return f"the step does not compile: {first}"
