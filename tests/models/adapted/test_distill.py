import numpy as np
import pytest

import rt_keras
from rt_keras.layers import LocalHeads
from tests.models.adapted.checks import make_backbone, make_inputs


@pytest.mark.slow
def test_distilled_blocks_come_nearer_and_the_rest_stays():
    gpt = make_backbone("GPT2")
    model = rt_keras.adapt(gpt, [LocalHeads(4, 2)])
    off = rt_keras.distill(
        model, gpt, make_inputs(gpt), steps=20, learning_rate=1e-2, seed=0, verbose=0
    )
    assert np.all(np.array(off["after"]) < 0.9 * np.array(off["before"]))
    np.testing.assert_array_equal(model.token_embedding.embeddings, gpt.token_embedding.embeddings)
