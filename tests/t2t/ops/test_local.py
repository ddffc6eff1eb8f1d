import numpy as np
import pytest

from rt_keras.t2t.ops import local_attention
from tests.ops import checks
from tests.t2t import reference
from tests.t2t.ops.checks import arrays

SHAPES = [{"block_size": 4}, {"block_size": 2, "grid": (2, 3)}]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", SHAPES)
def test_equation(causal, options):
    # With padding at the start, queries without keys get the mean of their window.
    checks.holds(
        local_attention,
        reference.local,
        arrays(12, far=3, token_bias=True),
        causal=causal,
        query_mask=checks.mask("right", 12),
        key_mask=np.arange(12) >= np.array([[3], [11]]),
        **options,
    )
