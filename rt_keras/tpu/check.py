"""Compiles a configuration's training step ahead of time with the TPU compiler."""

import collections
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from rt_keras import progress

# For each chip: cores as the compiler counts them, memory in bytes, peak bfloat16 operations per
# second, peak bytes per second, and bytes per second over all links to other chips in one
# direction. Source: the pages on TPU versions in Google's public Cloud TPU documentation, which
# state the links as 2400, 1600, 4800 and 3584 Gbps per chip.
Chip = collections.namedtuple("Chip", ("cores", "memory", "operations", "bandwidth", "links"))
CHIPS = {
    "v4": Chip(2, 32 * 2**30, 275e12, 1200e9, 300e9),
    "v5e": Chip(1, 16 * 2**30, 197e12, 819e9, 200e9),
    "v5p": Chip(1, 95 * 2**30, 459e12, 2765e9, 600e9),
    "v6e": Chip(1, 32 * 2**30, 918e12, 1640e9, 448e9),
}
COMPILER = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


def check_packages(wanted):
    """Raises a ModuleNotFoundError unless packages are installed in the required versions.

    Args:
        wanted: dictionary from package names to versions.
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


def lower(name, overrides, batch_size, kernels, cores=1):
    """Lowers the training step of a configuration to XLA.

    Args:
        name: string, name or path of the configuration.
        overrides: list of strings, KEY=VALUE.
        batch_size: int, number of sequences or images per core, or None for an equal share of the
            configuration's batch.
        kernels: bool, whether to use TPU kernels instead of those of this machine.
        cores: int, number of cores. Defaults to 1.

    Returns:
        The serialized `HloModuleProto`, and a dictionary that describes the step, with the `sizes`
        of `rt_keras.tpu.step`.

    Raises:
        ValueError: if an operation has no TPU kernel, or if the batch cannot be divided among the
            cores.
    """
    from rt_keras.tpu.kernels import lower_for_tpu
    from rt_keras.tpu.step import sizes, training_step
    from rt_keras.training.config import load_config
    from rt_keras.training.experiment import Experiment

    config = load_config(name, overrides)
    batch_size = batch_size or share(config.data.batch_size, cores)
    with progress.bar(f"tracing the training step of {name}"):
        step, specs, model = training_step(Experiment(config), batch_size, cores)
        if kernels:
            program = lower_for_tpu(step.get_concrete_function(*specs))
        else:
            program = step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    return program, {
        "config": name,
        "set": overrides,
        "cores": cores,
        "batch_size": batch_size,
        "optimizer": config.optimizer.name,
        "compute": "bfloat16" if config.trainer.mixed_bfloat16 else "float32",
        "program_bytes": len(program),
        **sizes(model, specs),
    }


def share(batch_size, cores):
    """Returns the batch size per core.

    Args:
        batch_size: int, `data.batch_size`.
        cores: int.

    Returns:
        An int.

    Raises:
        ValueError: if the batch cannot be divided.

    >>> share(32, cores=16)
    2
    """
    if batch_size % cores:
        raise ValueError(
            f"data.batch_size is {batch_size}, which {cores} cores cannot share: it must be a "
            "multiple of --cores, or --batch must give the batch size per core"
        )
    return batch_size // cores


def compiled(program, tokens, topology, cores=1):
    """Compiles a step and compares its costs with the resources of the chip.

    Args:
        program: bytes, a serialized `HloModuleProto`.
        tokens: int, number of tokens that the step predicts.
        topology: string, the chips to compile for.
        cores: int, number of cores: 1, or all cores of these chips. Defaults to 1.

    Returns:
        A dictionary of the figures of `rt_keras.tpu.compile.main` and: `held_bytes`, the peak
        memory of arguments, non-aliased outputs, temporaries and code; `chip_bytes`, the memory of
        the chip; `wire_bytes`, the bytes that a core sends per step in a ring all-reduce;
        `operation_seconds`, `access_seconds` and `wire_seconds` at the peak rates of the chip;
        `step_seconds`, their maximum; `wire_share`, `wire_seconds / step_seconds`;
        `tokens_per_second` of each core at that speed; and `compile_seconds` on this machine.
    """
    started = time.monotonic()
    with progress.bar(f"compiling {len(program) / 1e6:.0f} MB of program for {topology}"):
        found = compile_program(program, topology, cores)
    chip = CHIPS[topology.partition(":")[0]]
    wire_bytes = ring_bytes(found["summed_bytes"], cores)
    seconds = {
        "operation_seconds": found["operations"] / chip.operations,
        "access_seconds": found["accessed_bytes"] / chip.bandwidth,
        "wire_seconds": wire_bytes / chip.links,
    }
    longest = max(seconds.values())
    held = sum(found[f"{name}_bytes"] for name in ("argument", "output", "temporary", "code"))
    return {
        **found,
        "held_bytes": held - found["aliased_bytes"],
        "chip_bytes": chip.memory,
        "wire_bytes": wire_bytes,
        **seconds,
        "step_seconds": longest,
        "wire_share": seconds["wire_seconds"] / longest,
        "tokens_per_second": tokens / longest,
        "compile_seconds": time.monotonic() - started,
    }


def ring_bytes(summed_bytes, cores):
    """Returns the bytes that each core sends in a ring all-reduce.

    The ring forwards each partial sum `cores - 1` times, and then each result as many times.

    Args:
        summed_bytes: int, size of the values on each core.
        cores: int.

    Returns:
        A float.

    >>> ring_bytes(1000, cores=4)
    1500.0
    """
    return 2 * (cores - 1) / cores * summed_bytes


def check_cores(cores, topology):
    """Raises a ValueError unless a program can be compiled for this number of cores.

    Args:
        cores: int.
        topology: string such as "v5e:2x2". An invalid shape is left to the compiler.

    >>> check_cores(16, "v5e:4x4")
    >>> check_cores(16, "v5e:2x2")
    Traceback (most recent call last):
    ValueError: --cores must be 1, or 4 for all of v5e:2x2. Received: 16
    """
    name, _, shape = topology.partition(":")
    sides = shape.split("x")
    if cores == 1 or not all(side.isdecimal() for side in sides):
        return
    found = CHIPS[name].cores * math.prod(map(int, sides))
    if cores != found:
        raise ValueError(f"--cores must be 1, or {found} for all of {topology}. Received: {cores}")


def compile_program(hlo, topology, cores=1):
    """Compiles a program in a separate process.

    Args:
        hlo: bytes, a serialized `HloModuleProto`.
        topology: string, the chips to compile for.
        cores: int, number of cores: 1, or all cores of these chips. Defaults to 1.

    Returns:
        The dictionary written by `rt_keras.tpu.compile.main`.

    Raises:
        ValueError: if the program does not compile, with a one-line reason.
        MemoryError: if the compiler was killed.
        RuntimeError: if the compiler ended without a result.
    """
    script = Path(__file__).with_name("compile.py")
    with tempfile.TemporaryDirectory(prefix="rt-keras-tpu-") as folder:
        program, result = Path(folder) / "program", Path(folder) / "result"
        program.write_bytes(hlo)
        # The exit status is ignored, since libtpu may crash after it has finished.
        process = subprocess.run(
            [sys.executable, "-P", script, program, topology, str(cores), result],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if not result.exists():
            if process.returncode == -signal.SIGKILL:
                raise MemoryError("the compiler was killed, perhaps because memory ran out")
            last = (process.stderr.strip().splitlines() or ["no output"])[-1]
            raise RuntimeError(
                f"the compiler ended with status {process.returncode} and without a result: {last}"
            )
        found = json.loads(result.read_text(encoding="utf-8"))
    if "error" in found:
        raise ValueError(f"for {topology}: {reason(found['error'])}")
    return found


def reason(message):
    """Shortens the compiler's message to one line.

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
