"""Types of numbers that a processor computes with in software, slower than with float32."""

import functools
import re
import warnings
from pathlib import Path

from rt_keras.ops.devices import has_accelerator

# Names in `/proc/cpuinfo` of instructions that compute with each type, on x86 and ARM.
INSTRUCTIONS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


@functools.cache
def warn_if_emulated(dtype):
    """Warns, once, if this machine has neither instructions for a type nor an accelerator.

    Args:
        dtype: string, the type that a model computes in.
    """
    names = instructions()
    if not is_emulated(dtype, names) or has_accelerator():
        return
    better = [other for other in INSTRUCTIONS if not is_emulated(other, names)]
    warnings.warn(
        f"This processor has no instructions for {dtype}, and emulates them slowly. Use dtype="
        f"{' or '.join(repr(other) for other in ['float32', *better])} instead",
        stacklevel=3,
    )


def is_emulated(dtype, names):
    """Returns whether a processor with some instructions, if they are known, lacks those of a type.

    >>> [is_emulated("bfloat16", names) for names in ({"avx2"}, {"avx2", "amx_bf16"}, None)]
    [True, False, False]
    """
    return dtype in INSTRUCTIONS and names is not None and names.isdisjoint(INSTRUCTIONS[dtype])


def instructions():
    """Returns the names of the instructions that the processor has, a set; None if unknown."""
    try:
        line = re.search(r"^(flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        return None
    return line and set(line[2].split())
