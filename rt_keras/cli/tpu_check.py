"""`rt-keras tpu-check`: estimates the cost of a training step on Cloud TPU without a TPU."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rt_keras import options
from rt_keras.tables import table
from rt_keras.tpu import check


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.description = (
        "Compiles a configuration's training step for a Cloud TPU, without a TPU, for one core or "
        "data-parallel on several. Reports whether it compiles and fits in memory, its number of "
        "operations, and the bytes that it accesses and sends to other cores."
    )
    parser.epilog = (
        "example: rt-keras tpu-check --config pg19_local_cluster8k "
        "--set trainer.mixed_bfloat16=true"
    )
    options.add_config(parser, required=True)
    chips = ", ".join(check.CHIPS)
    meaning = f"the chip ({chips}) and the shape, such as v5p:2x2x1 (default: v5e:2x2)"
    options.add_options(parser, {"--topology CHIP:SHAPE": meaning}, default="v5e:2x2")
    meaning = (
        "sequences or images per core (default: data.batch_size of the configuration divided by "
        "--cores)"
    )
    options.add_options(parser, {"--batch N": meaning}, type=int)
    meaning = (
        "compile for N cores, which share the batch and sum gradients and cluster statistics: 1 "
        "(default), or all cores of the topology, such as 16 for v5e:4x4"
    )
    options.add_options(parser, {"--cores N": meaning}, type=int, default=1)
    meaning = (
        "instead of compiling, check that TensorFlow has a TPU kernel for every operation; needs "
        "tensorflow-tpu instead of tensorflow"
    )
    options.add_options(parser, {"--kernels": meaning}, action="store_true")


def main(args):
    """Checks one configuration and prints a report.

    Raises:
        ValueError: if an argument is invalid, or if the step does not compile, has an operation
            without a kernel, or does not fit in memory.
        ModuleNotFoundError: if a required package is missing.
    """
    chip = args.topology.partition(":")[0]
    if chip not in check.CHIPS:
        raise ValueError(
            f"--topology must name a chip among {', '.join(check.CHIPS)}, such as v5e:2x2. "
            f"Received: {args.topology}"
        )
    options.check_at_least_one(args, "batch", "cores")
    if args.kernels and args.cores > 1:
        raise ValueError("--kernels checks the operations of one core; omit --cores")
    check.check_cores(args.cores, args.topology)
    check.check_packages({"tensorflow-tpu": "2.20.0"} if args.kernels else check.COMPILER)
    # Keeps TensorFlow for TPUs from querying Google Cloud's metadata server.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # Lowering runs in a separate process, which frees its memory for the compiler.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        given = args.config, args.set, args.batch, args.kernels, args.cores
        program, figures = pool.submit(check.lower, *given).result()
    result = {"check": "tpu_kernels" if args.kernels else "tpu", **figures}
    if not args.kernels:
        compiled = check.compiled(program, figures["tokens"], args.topology, args.cores)
        result |= {"topology": args.topology, **compiled}
    print(report(result))
    return result


def report(result):
    """Formats the figures as lines of text.

    Args:
        result: the dictionary that `main` returns.

    Returns:
        A string.
    """
    heading = (
        f"{result['config']}: {result['parameters']:,} parameters, {result['compute']} compute, "
        f"{result['optimizer']}, {result['batch_size']} x "
        f"{result['tokens'] // result['batch_size']:,} tokens on each core"
    )
    if result["check"] == "tpu_kernels":
        return f"{heading}\nevery operation of the training step has a TPU kernel"
    chip, held = result["topology"].partition(":")[0], result["held_bytes"]
    memory = [
        (name, result[f"{key}_bytes"] / 2**30, what)
        for name, key, what in (
            ("arguments", "argument", "weights, optimizer, centroids and batch"),
            ("outputs", "output", "including aliased ones, which need no extra memory"),
            ("aliased", "aliased", "outputs that reuse the memory of arguments"),
            ("temporaries", "temporary", "activations, gradients and everything else"),
            ("code", "code", "the program"),
            ("held", "held", f"of {result['chip_bytes'] / 2**30:.0f} GiB"),
        )
    ]
    several = result["cores"] > 1
    all_cores = f", all {result['cores']} cores," if several else ""
    amounts = [
        ("operations, bfloat16", f"{result['operations'] / 1e12:.3f} T", "operation"),
        ("bytes accessed", f"{result['accessed_bytes'] / 2**30:.3f} GiB", "access"),
    ]
    if several:
        sent = f"{result['wire_bytes'] / 2**20:,.1f} MiB"
        amounts.append(("bytes to other cores", sent, "wire"))
    rates = [(name, size, result[f"{key}_seconds"] * 1e3) for name, size, key in amounts]
    return "\n".join(
        [
            heading,
            f"compiles for {result['topology']}{all_cores} and fits: "
            f"{held / result['chip_bytes']:.0%} of its memory",
            "",
            table({"memory": "", "size (GiB)": ".3f", "": ""}, memory),
            "",
            table({f"at the peak rates of {chip}": "", "amount": ">", "time (ms)": ".2f"}, rates),
            *([_sums(result)] if several else []),
            f"{result['tokens_per_second']:,.0f} tokens/s on each core, at most",
            f"not included: {', '.join(_left_out(result))}",
        ]
    )


def _sums(result):
    """Describes the sums over cores and their share of a step."""
    return (
        f"each step sums {result['summed_bytes'] / 2**20:,.1f} MiB over {result['cores']} cores, "
        f"gradients and statistics of clusters; it takes at least "
        f"{result['step_seconds'] * 1e3:.2f} ms, of which sending is {result['wire_share']:.0%}"
    )


def _left_out(result):
    """Yields what the figures do not include."""
    yield "the input"
    if result["cores"] == 1:
        size = f"{result['gradient_bytes'] / 2**30:.3f} GiB a step"
        yield f"the sum of the gradients over cores ({size})"
    if result["loops"]:
        yield f"every round but one of {result['loops']} loops"
