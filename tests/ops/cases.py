"""The attention ops in one table, and for each the space of its inputs and options."""

import typing

import numpy as np
from hypothesis import strategies as st

from rt_keras import ops
from rt_keras.ops.balanced import naive_balanced_attention
from rt_keras.ops.causal_clustered import naive_causal_clustered_attention
from rt_keras.ops.clustered import naive_clustered_attention
from rt_keras.ops.content_blocks.attend import naive_selected_blocks_attention
from rt_keras.ops.first_tokens import naive_first_tokens_attention
from rt_keras.ops.full import naive_full_attention
from rt_keras.ops.gated_delta import naive_gated_delta_rule
from rt_keras.ops.local.windows import naive_local_attention
from rt_keras.ops.lsh import naive_lsh_attention
from rt_keras.ops.naive import naive_normalize
from rt_keras.ops.nearest.attention import naive_nearest_attention
from rt_keras.ops.random import naive_random_attention
from rt_keras.ops.strided import naive_strided_attention
from tests.ops import checks

SMALL = st.integers(1, 12)
MASKS = st.sampled_from([None, "left", "right", "scattered", "a whole row"])
SEEDS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], "int32")


class Case(typing.NamedTuple):
    """An op, and how to call it.

    `options` are those of a usual call. `exact` are changes of `arrays` and options for which
    rounding does not change who sees whom, `drops` those for which each key is dropped by itself.
    `space`, `of_arrays` and `patches` have a strategy by the name of an option, of an argument of
    `arrays` and of a constant; `finish` changes what was drawn. `of_inputs` returns
    options that depend on the inputs.
    """

    op: typing.Callable
    equation: typing.Callable
    options: dict
    arrays: typing.Callable = checks.arrays
    space: typing.Mapping = {}
    of_arrays: typing.Mapping = {}
    patches: typing.Mapping = {}
    finish: typing.Callable = lambda draw, given, options: None
    of_inputs: typing.Callable = lambda inputs: {}
    exact: typing.Mapping = {}
    far: bool = True
    shared: typing.Any = "may be"
    cross: bool = False
    grouped: bool = False
    # "option" or "always"; of "members", the choice depends on the future.
    causal: str = "option"
    drops: typing.Any = None
    atol: float = 0.06
    examples: int = 15


CONTENT_BLOCKS = "rt_keras.ops.content_blocks"


def draw_case(draw, case):
    """Draws inputs and options from the whole space of an op."""
    given = {"length": draw(st.integers(1, 20)), "seed": draw(st.integers(0, 999))}
    given["shared"] = case.shared is True or case.shared == "may be" and draw(st.booleans())
    if case.cross and not given["shared"]:
        given["keys"] = draw(st.integers(1, 20))
    if case.far:
        given["far"] = draw(st.sampled_from([None, 1, 4, 30]))
    given |= {name: draw(values) for name, values in case.of_arrays.items()}
    options = {name: draw(values) for name, values in case.space.items()}
    if case.causal != "always":
        options["causal"] = draw(st.booleans())
    case.finish(draw, given, options)
    grouped = case.grouped and draw(st.booleans())
    inputs = case.arrays(**given, **({"heads": 4} if grouped else {}))
    if grouped:
        inputs = with_two_key_heads(inputs)
    options |= case.of_inputs(inputs)
    for name, of in (("query_mask", "query"), ("key_mask", "value")):
        length = inputs[of].shape[2]
        options[name] = checks.mask(draw(MASKS), length, seed=draw(st.integers(0, 9)))
    if draw(st.booleans()) and inputs["query"].shape[2] == inputs["value"].shape[2]:
        options["key_mask"] = options["query_mask"]
    return inputs, options


OF_KEY_HEADS = {"key": 1, "value": 1, "centroids": 0, "load_bias": 0}


def with_two_key_heads(inputs):
    """Inputs of four heads, two of which share keys and values."""
    of_keys = {name: axis for name, axis in OF_KEY_HEADS.items() if inputs.get(name) is not None}
    return {**inputs, **{name: inputs[name].take([0, 2], axis) for name, axis in of_keys.items()}}


def of_each_head(equation):
    """The equation where key heads serve several heads."""

    def repeated(**given):
        heads = given["query"].shape[1]
        for name, axis in OF_KEY_HEADS.items():
            x = given.get(name)
            if x is not None:
                given[name] = np.repeat(x, heads // x.shape[axis], axis)
        return equation(**given)

    return repeated


def usual(name, length=18, **arrays):
    """The case of a name, its inputs and its options with padding."""
    case = CASES[name]
    far = {"far": 2} if case.far else {}
    inputs = case.arrays(length=length, shared=case.shared is True, **far, **arrays)
    mask = checks.mask("scattered", length, batch=inputs["query"].shape[0])
    options = {**case.options, **case.of_inputs(inputs), "query_mask": mask}
    if case.causal != "always":
        options["causal"] = True
    if case.shared is not True:
        options["key_mask"] = mask
    return case, inputs, options


def changed(case, by, length, **arrays):
    """Inputs and options with changes of `case.exact` or `case.drops`."""
    of_arrays = {name: x for name, x in by.items() if name in ("clusters", "rounds", "margin")}
    options = {name: x for name, x in by.items() if name not in of_arrays}
    far = {"far": 2} if case.far else {}
    shared = case.shared is True
    inputs = case.arrays(length=length, shared=shared, **{**far, **of_arrays, **arrays})
    return inputs, {**case.options, **options, **case.of_inputs(inputs)}


def clustered_arrays(clusters=3, **options):
    return checks.arrays(clusters=clusters, **options)


def nearest_arrays(clusters=3, strength=1, margin=0, scaled=False, heads=2, **options):
    """A strong bias makes clusters uneven; no vector is closer to a border than a margin."""
    found = checks.arrays(clusters=clusters, load_bias=True, heads=heads, **options)
    found["load_bias"] *= strength
    if scaled:
        found["scale"] = np.linspace(0.5, 2, heads)
    rng = np.random.default_rng(4)
    for name in ("query", "key"):
        x = found[name]
        while x is not None and margin:
            scores = np.einsum("bhnd,hcd->bhnc", naive_normalize(x), found["centroids"])
            scores += found["load_bias"][:, None]
            close = np.min(np.diff(np.sort(scores)), axis=-1) < margin
            if not close.any():
                break
            x[close] = rng.normal(size=x[close].shape)
    return found


def finish_nearest(draw, given, options):
    options["num_probes"] = draw(st.integers(1, given["clusters"]))
    if given["shared"] and draw(st.booleans()):
        options["routed_key"] = "previous_query"
    elif draw(st.booleans()):
        options["block_size"] = draw(st.integers(1, 6))
        options["look_back"] = draw(st.integers(0, 2))


def finish_full(draw, given, options):
    """A mask of pairs in which some query sees no key."""
    if draw(st.booleans()):
        shape = 2, given["length"], given.get("keys", given["length"])
        mask = np.random.default_rng(given["seed"]).random(shape) < 0.5
        mask[0, -1] = False
        options["attention_mask"] = mask


def beside(query_positions, key_positions):
    """The keys of a window of two positions."""
    return abs(query_positions - key_positions) < 2


def first_tokens(**given):
    return ops.first_tokens_attention(**given)[0]


def selected_blocks(selected_by=None, **given):
    return ops.selected_blocks_attention(**given)[0]


def finish_selected_blocks(draw, given, options):
    """Blocks of a segment, by content or in order, perhaps in nodes or of the last positions."""
    segment_size = options["segment_size"]
    options["block_size"] = draw(st.sampled_from([1, 2, 4]))
    options["window"] = draw(st.sampled_from([(8, 1), (16, 0)]))
    if options["block_size"] * 8 <= segment_size and draw(st.booleans()):
        options["num_nodes"] = draw(st.sampled_from([1, 2, 9]))
    if options["causal"] and draw(st.booleans()):
        options["memory_length"] = draw(st.sampled_from([8, 16]))


def finish_local(draw, given, options):
    """One dimension, a grid, or blocks of keys of another size."""
    size, form = options["block_size"], draw(st.sampled_from(["blocks"] * 3 + ["grid", "keys"]))
    if form == "blocks" and draw(st.booleans()):
        options["sliding_window"] = draw(st.integers(1, options["look_back"] * size + 1))
    if form == "grid":
        grid = draw(st.sampled_from([(3, 2), (2, 3), (4, 1), (2, 1, 2)]))
        options["grid"], given["length"] = grid, size * int(np.prod(grid))
        options["look_back"] = tuple(draw(st.integers(0, 2)) for _ in grid)
    if form == "keys":
        options["key_block_size"], options["causal"] = draw(st.integers(1, 5)), False
        if options["key_block_size"] != size:
            given["shared"] = False
        blocks = -(-given["length"] // size)
        given["keys"] = blocks * options["key_block_size"]
        if given["shared"]:
            given["length"] = given["keys"]


def hashed_arrays(length, bits=2, heads=2, **options):
    found = checks.arrays(length, heads=heads, **options)
    return {**found, "projections": np.random.default_rng(7).normal(size=(heads, bits, 6))}


def lsh_arrays(length, rounds=2, buckets=4, heads=2, **options):
    found = checks.arrays(length, heads=heads, **options)
    rotations = np.random.default_rng(7).normal(size=(heads, rounds, 6, buckets // 2))
    return {**found, "rotations": rotations}


def grouped(projections, num_clusters, query_mask=None, iterations=10, **given):
    found = {"num_clusters": num_clusters, "iterations": iterations, "mask": query_mask}
    groups = ops.hamming_groups(given["query"], projections, **found).numpy()
    options = {"num_clusters": num_clusters, "query_mask": query_mask}
    return naive_clustered_attention(groups=groups, **options, **given)


def finish_grouped(draw, given, options):
    if options["causal"] and options["top_k"] is None:
        options["causal"] = False


def delta_arrays(length, batch=2, heads=2, seed=0, **options):
    """Keys have length 1."""
    inputs = checks.arrays(length, batch=batch, heads=heads, seed=seed, **options)
    inputs["key"] /= np.linalg.norm(inputs["key"], axis=-1, keepdims=True)
    rng = np.random.default_rng(seed + 10)
    inputs["log_decay"] = -rng.exponential(size=(batch, heads, length))
    inputs["beta"] = rng.uniform(size=(batch, heads, length))
    return inputs


def gated_delta(block_size=64, **given):
    return naive_gated_delta_rule(**given)


WINDOWS = {"space": {"window_size": SMALL}, "of_arrays": {"clusters": st.integers(1, 6)}}
PARTS = {"rt_keras.ops.attend.PART_SIZE": st.sampled_from([128, 1, 2])}
SCORES = st.sampled_from([2**24, 1, 100])
MEMBERS = {
    "cross": True,
    "causal": "members",
    "patches": PARTS,
    # Every position is a member.
    "exact": {"window_size": 18},
}
NEAREST = {
    "arrays": nearest_arrays,
    "space": {**WINDOWS["space"], "use_query_key_norm": st.booleans()},
    "of_arrays": {
        **WINDOWS["of_arrays"],
        "strength": st.sampled_from([0, 1, 5]),
        "scaled": st.booleans(),
    },
    "finish": finish_nearest,
    "patches": {
        "rt_keras.ops.nearest.shared.MAX_BLOCK_SIZE": st.sampled_from([128, 1, 2, 3]),
        "rt_keras.ops.nearest.assign.RUN_SIZE": st.sampled_from([32, 2, 3]),
    },
    "exact": {"margin": 0.2},
    "grouped": True,
    "drops": {"window_size": 3},
    "examples": 30,
}
CASES = {
    "full": Case(
        ops.full_attention,
        naive_full_attention,
        {},
        finish=finish_full,
        cross=True,
        drops={},
        grouped=True,
        atol=0.03,
        examples=25,
    ),
    "local": Case(
        ops.local_attention,
        naive_local_attention,
        {"block_size": 4},
        space={"block_size": st.integers(1, 6), "look_back": st.integers(0, 2)},
        finish=finish_local,
        patches=PARTS,
        grouped=True,
        drops={"block_size": 3},
        atol=0.03,
        examples=40,
    ),
    "strided": Case(
        ops.strided_attention,
        naive_strided_attention,
        {"stride": 3},
        space={"stride": SMALL, "outside": st.sampled_from([None, lambda i, j: abs(i - j) < 4])},
        grouped=True,
        drops={"stride": 2},
        atol=0.03,
    ),
    "first tokens": Case(
        first_tokens,
        naive_first_tokens_attention,
        {"num_first_tokens": 4},
        space={"num_first_tokens": SMALL, "outside": st.sampled_from([(), (beside,)])},
        far=False,
        shared=False,
        grouped=True,
        drops={"num_first_tokens": 5},
        atol=0.03,
        examples=25,
    ),
    "selected blocks": Case(
        selected_blocks,
        naive_selected_blocks_attention,
        {"block_size": 1, "num_blocks": 3, "segment_size": 4, "window": (4, 0)},
        space={
            "num_blocks": st.sampled_from([1, 3, 50]),
            "segment_size": st.just(8),
            "by_content": st.booleans(),
            "deviation_weight": st.sampled_from([0.0, 1.0]),
            "num_first_tokens": st.sampled_from([0, 3]),
        },
        of_arrays={"length": st.integers(1, 40)},
        patches={
            f"{CONTENT_BLOCKS}.attend.runs_on_cpu_kernels": st.sampled_from(
                [lambda: True, lambda: False]
            ),
            f"{CONTENT_BLOCKS}.tiles.LEAST_BLOCK_SIZE": st.sampled_from([16, 1]),
            f"{CONTENT_BLOCKS}.tiles.TILE_SIZE": st.just(4),
            f"{CONTENT_BLOCKS}.tiles.MOST_ROWS": st.just(100),
        },
        finish=finish_selected_blocks,
        # No gradient passes through the choice.
        of_inputs=lambda inputs: {"selected_by": (inputs["query"], inputs["key"])},
        far=False,
        shared=False,
        grouped=True,
        exact={"num_blocks": 50, "by_content": False},
        examples=40,
    ),
    "nearest": Case(
        ops.nearest_attention,
        naive_nearest_attention,
        {"window_size": 4, "num_probes": 2},
        shared=False,
        **NEAREST,
    ),
    "nearest with shared keys": Case(
        ops.nearest_attention, naive_nearest_attention, {"window_size": 4}, shared=True, **NEAREST
    ),
    "balanced": Case(
        ops.balanced_attention,
        naive_balanced_attention,
        {"window_size": 5},
        clustered_arrays,
        examples=25,
        **WINDOWS,
        # Members are chosen for some clusters at a time.
        **{**MEMBERS, "patches": {**PARTS, "rt_keras.ops.balanced.MAX_SCORES": SCORES}},
        # Where several clusters choose a position, one may drop what another keeps.
        drops={"window_size": 5, "clusters": 1},
    ),
    "random": Case(
        ops.random_attention,
        naive_random_attention,
        {"num_clusters": 3, "window_size": 5},
        of_inputs=lambda inputs: {"routing_seed": SEEDS[: inputs["query"].shape[1]]},
        space={"window_size": SMALL, "num_clusters": st.integers(1, 5)},
        **{**MEMBERS, "causal": "option"},
        drops={"window_size": 5, "num_clusters": 1},
    ),
    "clustered": Case(
        ops.clustered_attention,
        grouped,
        {"num_clusters": 3, "top_k": 4},
        hashed_arrays,
        space={
            "num_clusters": st.integers(1, 6),
            "iterations": st.integers(1, 4),
            "top_k": st.sampled_from([None, 1, 4, 30]),
        },
        of_arrays={"bits": st.integers(4, 40)},
        finish=finish_grouped,
        cross=True,
        far=False,
        causal="members",
        exact={"num_clusters": 1, "top_k": 18},
        drops={"top_k": None},
    ),
    "lsh": Case(
        ops.lsh_attention,
        naive_lsh_attention,
        {"block_size": 4},
        lsh_arrays,
        space={"block_size": SMALL},
        of_arrays={"rounds": st.integers(1, 4), "buckets": st.sampled_from([2, 4, 6])},
        shared=True,
        far=False,
        causal="members",
        # In one round: in several, a key is dropped from each by itself.
        drops={"block_size": 9, "rounds": 1},
    ),
    "causal clustered": Case(
        ops.causal_clustered_attention,
        naive_causal_clustered_attention,
        {"block_size": 4},
        nearest_arrays,
        space={"block_size": SMALL},
        of_arrays={"clusters": st.integers(1, 6)},
        patches={"rt_keras.ops.causal_clustered.RUN_SIZE": st.sampled_from([32, 2, 3])},
        far=False,
        causal="always",
        exact={"clusters": 1},
        drops={},
    ),
    "gated delta": Case(
        ops.gated_delta_rule,
        gated_delta,
        {"block_size": 4},
        delta_arrays,
        space={"block_size": SMALL},
        shared=False,
        far=False,
        causal="always",
    ),
}


def rounded(case):
    """Inputs and options for lower precision."""
    inputs, options = changed(case, case.exact, length=11)
    if "rotations" in inputs:
        # All positions share one bucket and one chunk.
        inputs["rotations"] = np.zeros_like(inputs["rotations"])
        options["block_size"] = 11
    return inputs, {**options, **({} if case.causal == "always" else {"causal": True})}
