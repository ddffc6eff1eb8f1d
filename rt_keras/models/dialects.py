"""Dialects: layers that reproduce the numbers of another program.

For each head kind that it supports, a dialect has a function of the `ModelSection` and the
arguments of the kind's layer.
"""

from rt_keras import t2t


def _of_paper_authors(layer, pads=False, drop=()):
    """Returns the function of a head kind in the Tensor2Tensor code of the paper's authors.

    Args:
        layer: class of the head group.
        pads: bool, whether it takes the size of the blocks to which sequences are padded.
        drop: names of the arguments that it does not take.
    """

    def make(model, arguments):
        kept = {name: value for name, value in arguments.items() if name not in drop}
        if pads:
            kept["block_size"] = model.local.block_size
        return layer(**kept)

    return make


# Functions by the name of the dialect, then by the name of the kind.
DIALECTS = {
    "t2t": {
        "routing": _of_paper_authors(
            t2t.T2TRoutingHeads,
            pads=True,
            drop=("assignment", "num_probes"),
        ),
        "hashed": _of_paper_authors(t2t.T2THashedHeads, pads=True),
        "cluster_strided": _of_paper_authors(t2t.T2TClusterStridedHeads, pads=True),
        "strided": _of_paper_authors(t2t.T2TStridedHeads),
        "local": _of_paper_authors(t2t.T2TLocalHeads),
    }
}
