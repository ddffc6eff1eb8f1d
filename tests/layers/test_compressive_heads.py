from rt_keras.layers import CompressiveHeads
from tests.layers import checks


def test_learnt_compression_has_a_loss():
    x = checks.random(1, 2, 20, 4)
    for compression, number in (("conv", 1), ("mean", 0)):
        group = CompressiveHeads(2, 4, 2, compression=compression)
        group(x, x, x, use_causal_mask=True, training=True)
        assert len(group.losses) == number and all(loss > 0 for loss in group.losses)
