"""What holds for every attention op of `cases.CASES`."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import cases, checks
from tests.ops.cases import CASES, usual

NAMES = pytest.mark.parametrize("name", CASES)
# Full attention takes slices of queries, and what is left out attends as "balanced" does.
IN_SLICES = [
    *("local", "strided", "nearest", "nearest with shared keys"),
    *("balanced", "clustered", "lsh", "causal clustered"),
]


@NAMES
def test_any_case_has_the_equation_and_its_gradient(name):
    case = CASES[name]

    @settings(max_examples=case.examples, derandomize=True)
    @given(data=st.data())
    def holds(data):
        inputs, options = cases.draw_case(data.draw, case)
        with pytest.MonkeyPatch.context() as patch:
            for constant, values in case.patches.items():
                patch.setattr(constant, data.draw(values))
            checks.holds(case.op, cases.of_each_head(case.equation), inputs, **options)

    holds()


@pytest.mark.parametrize("name", [name for name in CASES if "centroids" in usual(name)[1]])
def test_centroids_have_no_gradient(name):
    case, inputs, options = usual(name)
    given = checks.tensors(inputs)
    with tf.GradientTape() as tape:
        tape.watch(given["centroids"])
        output = case.op(**given, **options)
    assert tape.gradient(output, given["centroids"]) is None


@NAMES
def test_one_trace_serves_every_batch_size_and_length(name):
    case, _, options = usual(name)
    masks = {mask: options.pop(mask) for mask in ("query_mask", "key_mask") if mask in options}

    def inputs(length):
        batch = 1 + length % 3
        _, found, _ = usual(name, length, batch=batch)
        found = {name: x for name, x in found.items() if x is not None}
        return {**found, **dict.fromkeys(masks, checks.mask("scattered", length, batch))}

    checks.holds_for_unknown_shapes(case.op, (8, 0, 1, 13), inputs, **options)


@NAMES
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_lower_precision(name, dtype):
    case = CASES[name]
    inputs, options = cases.rounded(case)
    atol = 1e-5 if dtype == tf.float32 else case.atol
    checks.holds_in_lower_precision(case.op, case.equation, inputs, dtype, atol, **options)


@NAMES
def test_numpy_arguments(name):
    case, inputs, options = usual(name, 7)
    checks.takes_numpy(case.op, case.equation, inputs, **options)


@pytest.mark.slow
@NAMES
def test_xla_computes_the_same(name):
    case, inputs, options = usual(name)
    checks.holds_compiled(case.op, inputs, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_SLICES)
def test_slices_of_memory_give_what_all_at_once_does(name, monkeypatch):
    case, inputs, options = usual(name, heads=4)
    if case.grouped:
        inputs = cases.with_two_key_heads(inputs)
    checks.holds_in_slices(case.op, inputs, monkeypatch, **options)


@pytest.mark.parametrize(
    "name, in_chunks",
    [
        *((name, False) for name, case in CASES.items() if case.drops is not None),
        *(("full", True), ("local", True), ("balanced", True)),
        pytest.param("nearest", True, marks=pytest.mark.slow),
    ],
)
def test_dropout(name, in_chunks, monkeypatch):
    case = CASES[name]
    inputs, options = cases.changed(case, case.drops, 9, batch=1)
    if case.causal == "option":
        options["causal"] = True
    if in_chunks:
        checks.at_most_logits(1, monkeypatch)
    checks.drops_out(case.op, inputs, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, length, arrays, options, most",
    [
        # n² is at least 32 times as much. XLA is given 5 indices for each relative logit.
        ("local", 4096, {"far": 4}, {"block_size": 16}, 6 * 2 * 16),
        ("strided", 1024, {"far": 4}, {"stride": 32}, 4 * 2 * 32),
        ("nearest", 4096, {"clusters": 32}, {"window_size": 16}, 4 * 2 * 2 * 16),
        ("nearest", 4096, {"clusters": 32, "far": 4}, {"window_size": 16}, 20 * 2 * 2 * 16),
        ("nearest with shared keys", 4096, {"clusters": 32}, {"window_size": 16}, 4 * 2 * 16),
        ("balanced", 4096, {"clusters": 64, "far": 4}, {"window_size": 16}, 8 * 2 * 16),
        ("clustered", 2048, {"bits": 8}, {"num_clusters": 8, "top_k": 8}, 2 * 32 * 8),
        ("causal clustered", 2048, {"clusters": 8}, {"block_size": 32}, 2 * 2 * (32 + 8)),
        ("gated delta", 2048, {}, {"block_size": 32}, 2 * 2 * 32),
    ],
)
def test_no_tensor_has_all_pairs_of_positions(name, length, arrays, options, most):
    case = CASES[name]
    options = {**case.options, **options}
    if case.causal == "option":
        options["causal"] = True
    shared = case.shared is True
    inputs = case.arrays(length=length, shared=shared, batch=1, **arrays)
    assert checks.largest_tensor(case.op, inputs, **options) <= most * length < length**2


@pytest.mark.parametrize(
    "name, length, arrays, options, most",
    [
        # Two lists of positions at most.
        ("full", 256, {}, {}, 2 * 256),
        ("full", 256, {"far": 5}, {}, 2 * 256),
        ("strided", 8 * 32, {}, {"stride": 8}, 32**2),
    ],
)
def test_the_causal_mask_is_no_constant_of_the_program(name, length, arrays, options, most):
    inputs = checks.arrays(length, batch=1, **arrays)
    assert checks.largest_constant(CASES[name].op, inputs, **options, causal=True) <= most


SHIFTED = {"routed_key": "previous_query"}


@pytest.mark.parametrize(
    "name, keys, given, message",
    [
        ("strided", 7, {}, "query of length 5, value of length 7"),
        ("nearest", 7, {}, '"nearest".*query of length 5, value of length 7'),
        ("nearest", 5, SHIFTED, "needs key=None and block_size=None"),
        ("nearest", 5, {**SHIFTED, "key": None, "block_size": 4}, "key=None and block_size=None"),
        ("causal clustered", 7, {}, "as many keys as queries.*length 5, value of length 7"),
        ("gated delta", 7, {}, "as many keys as queries.*length 5, value of length 7"),
        ("lsh", 5, {}, "takes no key"),
    ],
)
def test_keys_and_values_that_do_not_fit(name, keys, given, message):
    case = CASES[name]
    inputs = checks.tensors(case.arrays(length=5, keys=keys))
    with pytest.raises(ValueError, match=message):
        case.op(**{**inputs, **case.options, **given})
