import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.content_blocks import cache as selected_blocks_chunk
from rt_keras.ops.content_blocks import select as block_selection
from rt_keras.ops.content_blocks.select import BlockOptions
from tests.ops import checks, chunk_checks
from tests.ops.test_selected_blocks import CASES, LENGTH, RECENT, attention

FIELDS = BlockOptions._fields
# With short slices, rings have 32 to 40 places, and are overwritten several times.
LONG = 102


@pytest.fixture(autouse=True)
def short_slices(monkeypatch):
    """Slices of one segment."""
    monkeypatch.setattr(block_selection, "SLICE_LENGTH", 1)


def chunk(*arguments, **options):
    kind = BlockOptions(**{name: options.pop(name) for name in FIELDS if name in options})
    (output, _), cache = selected_blocks_chunk.selected_blocks_chunk(
        *arguments, options=kind, **options
    )
    return output, cache


def new_cache(options, key=None, value=None, count=None, max_length=LENGTH):
    """The cache of some positions; of none without keys."""
    if key is None:
        key, value = (tf.zeros([2, 2, 0, size], tf.float64) for size in (6, 5))
    return selected_blocks_chunk.selected_blocks_cache(
        key, value, count, max_length=max_length, options=BlockOptions(**options)
    )


@pytest.mark.parametrize(
    "case, fewest", [("content", 16), *((case, 1 + 15 * (i % 2)) for i, case in enumerate(CASES))]
)
def test_chunks_are_one_pass(case, fewest, monkeypatch):
    """Chunks that read all segments, and those that read as few as they need."""
    monkeypatch.setattr(selected_blocks_chunk, "FEWEST_SEGMENTS", fewest)
    options = CASES[case]
    inputs = checks.arrays(LENGTH)
    expected = attention(**checks.tensors(inputs), **options, causal=True)
    cache = new_cache(options)
    ends = [1, 2, 15, 16, 17, 24, 40, 45]
    found, _ = chunk_checks.in_chunks(cache, chunk, inputs, ends, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def long_inputs():
    return checks.arrays(LONG)


@pytest.fixture(scope="module")
def expected(long_inputs):
    """The outputs of one pass, by the names of the cases."""
    given = checks.tensors(long_inputs)
    return {
        case: np.asarray(attention(**given, **options, causal=True))
        for case, options in RECENT.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, slice_length", [*((case, 1) for case in RECENT), ("memory of nodes", 20)]
)
def test_chunks_of_a_ring_are_one_pass(case, slice_length, long_inputs, expected, monkeypatch):
    """Unaligned chunks, among them one that is longer than the ring."""
    monkeypatch.setattr(block_selection, "SLICE_LENGTH", slice_length)
    options = RECENT[case]
    cache = new_cache(options)
    ends = [1, 15, 16, 17, 24, 70, 78, LONG]
    found, _ = chunk_checks.in_chunks(cache, chunk, long_inputs, ends, **options)
    np.testing.assert_allclose(found, expected[case], rtol=0, atol=1e-12)


@pytest.mark.parametrize("counts", [[90, 90], [87, 31], [8, 0]])
def test_a_ring_of_a_prompt(counts, long_inputs, expected):
    """A chunk continues a prompt; what follows the prompt in the given keys does not matter."""
    options, x = RECENT["memory of nodes"], checks.tensors(long_inputs)
    counts = np.array(counts)
    junk = tf.constant(np.arange(LONG) >= counts[:, None], tf.float64)[:, None, :, None]
    count = int(counts[0]) if counts[0] == counts[1] else tf.constant(counts, tf.int32)
    cache = new_cache(options, x["key"] + 10 * junk, x["value"] + 10 * junk, count)
    rows = counts[:, None] + np.arange(12)
    inputs = [tf.gather(x[name], rows, axis=2, batch_dims=1) for name in ("query", "key", "value")]
    found, _ = chunk(*inputs, cache, tf.constant(counts, tf.int32), **options)
    wanted = [expected["memory of nodes"][row, :, rows[row]] for row in range(2)]
    np.testing.assert_allclose(found, np.swapaxes(wanted, 1, 2), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "case, start, length, jit_compile",
    [
        ("content", 2, 12, False),
        pytest.param("first tokens in nodes", 12, 22, True, marks=pytest.mark.slow),
        # Several slices of a ring.
        pytest.param("memory", 60, 91, False, marks=pytest.mark.slow),
    ],
)
def test_gradients_stay_in_the_chunk(case, start, length, jit_compile, monkeypatch):
    monkeypatch.setattr(selected_blocks_chunk, "FEWEST_SEGMENTS", 1)
    options = {**CASES, **RECENT}[case]

    def compiled(*, cache, position, **arguments):
        # As in a model, whose chunks start where a tensor says.
        names = ("query", "key", "value")
        inputs, others = ({k: x for k, x in arguments.items() if (k in names) == y} for y in (1, 0))
        function = tf.function(
            lambda cache, position, inputs: chunk(
                **inputs, cache=cache, position=position, **others
            ),
            jit_compile=jit_compile,
        )
        return function(cache, tf.constant(position), inputs)

    chunk_checks.gradients_stay_in_the_chunk(
        new_cache(options, max_length=length),
        compiled,
        lambda **arguments: attention(**arguments, causal=True),
        checks.arrays(length),
        start,
        **options,
    )


def test_padding_of_slices_does_not_change_a_ring(long_inputs):
    options, x = RECENT["memory"], checks.tensors(long_inputs)
    names = ("query", "key", "value")
    _, cache = chunk(*(x[name][:, :, :50] for name in names), new_cache(options), 0, **options)
    alone, padded = (
        chunk(*(x[name][:, :, 50:end] for name in names), cache, 50, count=13, **options)
        for end in (63, 80)
    )
    np.testing.assert_allclose(padded[0][:, :, :13], alone[0], rtol=0, atol=1e-12)
    for name, kept in alone[1].items():
        np.testing.assert_allclose(padded[1][name], kept, rtol=0, atol=1e-12)


def test_a_cache_of_another_memory():
    x = checks.tensors(checks.arrays(10))
    cache = new_cache(RECENT["memory"])
    with pytest.raises(ValueError, match="With memory_length=16, .* 40 places. Received: 32"):
        chunk(**x, cache=cache, position=0, **{**RECENT["memory"], "memory_length": 16})
