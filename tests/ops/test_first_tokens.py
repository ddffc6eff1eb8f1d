import numpy as np
import pytest

from rt_keras.ops import first_tokens_attention
from tests.ops import checks, reference
from tests.ops.cases import of_each_head, with_two_key_heads


def beside(query_positions, key_positions):
    """The keys of a window of two positions."""
    return abs(query_positions - key_positions) < 2


def attention(**arguments):
    return first_tokens_attention(**arguments)[0]


def loop(query, key, value, num_first_tokens, outside=(), **options):
    places = np.arange(query.shape[2])
    mask = options["key_mask"] if options.get("key_mask") is not None else places[None] >= 0
    # The first tokens are those after the padding at the start of a row.
    start = mask.argmax(1)[:, None, None]
    seen = np.zeros([len(query), len(places), len(places)], bool)
    seen |= (places >= start) & (places < start + num_first_tokens)
    for covers in outside:
        seen &= ~covers(places[:, None], places)
    return reference.full(query, key, value, attention_mask=seen, **options)


@pytest.mark.parametrize("length, first", [(9, 4), (3, 5), (1, 1)])
@pytest.mark.parametrize("padding", [None, "left", "scattered", "a whole row"])
def test_equation(length, first, padding):
    inputs, mask = with_two_key_heads(checks.arrays(length, heads=4)), checks.mask(padding, length)
    options = {"num_first_tokens": first, "query_mask": mask, "key_mask": mask}
    for causal, outside in ((False, (beside,)), (True, ()), (True, (beside,))):
        checks.holds(
            attention, of_each_head(loop), inputs, **options, causal=causal, outside=outside
        )


def test_compiled_by_xla():
    inputs = with_two_key_heads(checks.arrays(9, heads=4))
    checks.holds_compiled(attention, inputs, num_first_tokens=4, causal=True)
