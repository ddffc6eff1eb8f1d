import numpy as np

from rt_keras.layers import LocalRoutingHeads, RoutingMemoryHeads
from tests.layers import checks


def test_a_memory_of_all_members_equals_a_longer_window():
    x, mask = checks.random(2, 2, 24, 4), checks.padding(2, 24)
    options = {"query_mask": mask, "key_mask": mask, "use_causal_mask": True}
    # Members that leave the window, which is as long as a block, are already in the memory.
    remembering = RoutingMemoryHeads(2, 4, 2, 4, memory_length=24, memory_keys=24)
    longer = LocalRoutingHeads(2, 4, 2, 24)
    outputs = [group(x, x, x, **options) for group in (remembering, longer)]
    assert np.any(outputs[0] != outputs[1])
    for ours, theirs in zip(longer.weights, remembering.weights):
        ours.assign(theirs)
    np.testing.assert_allclose(longer(x, x, x, **options), outputs[0], rtol=0, atol=1e-5)
