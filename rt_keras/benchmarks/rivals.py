"""What a user would pick instead: attention in PyTorch, made and called as its packages say.

The packages are the extra `[rivals]`; `pytorch-fast-transformers` is compiled when installed.
"""

from importlib import metadata
from importlib.util import find_spec

# The modules that each rival needs, of the package that it is from last.
ATTENTION = {
    "torch_full": ("torch",),
    "kmeans_attention": ("torch", "routing_transformer"),
    "kmeans_attention_shared": ("torch", "routing_transformer"),
    "fast_transformers": ("torch", "fast_transformers"),
}
MODELS = {"routing_transformer": ("torch", "routing_transformer")}
PACKAGES = {
    "torch": "torch",
    "routing_transformer": "routing-transformer",
    "fast_transformers": "pytorch-fast-transformers",
}
CLUSTERS_OF_FAST_TRANSFORMERS = 100


def package(imports):
    """The name of the package that a rival is from.

    >>> package(MODELS["routing_transformer"])
    'routing-transformer'
    """
    return PACKAGES[imports[-1]]


def choose(wanted, rivals, say):
    """The rivals that are to be measured.

    Args:
        wanted: list of names, or None for all that are installed.
        rivals: `ATTENTION` or `MODELS`.
        say: function called with a line for each that is not installed and not asked for.

    Returns:
        Dictionary of the modules of each.

    Raises:
        ValueError: if there is no such rival, or one that is asked for is not installed.
    """
    for name in wanted or ():
        if name not in rivals:
            raise ValueError(f"--rivals must be among {', '.join(rivals)}. Received: {name}")
    chosen = {}
    for name in dict.fromkeys(rivals if wanted is None else wanted):
        missing = [PACKAGES[module] for module in rivals[name] if find_spec(module) is None]
        line = f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        if not missing:
            chosen[name] = rivals[name]
        elif wanted is None:
            say(f"not installed: {line}")
        else:
            raise ValueError(f"--rivals: {line}")
    return chosen


def versions(rivals):
    """The versions of the packages that rivals are from.

    Args:
        rivals: what `choose` returned.
    """
    modules = dict.fromkeys(module for imports in rivals.values() for module in imports)
    return {PACKAGES[module]: metadata.version(PACKAGES[module]) for module in modules}


def prepare(kind, direction, length, heads, depth, window):
    """Makes inputs and the function that runs one rival on them once.

    Everything is of batch 1 and float32, on a GPU where PyTorch sees one. Inputs are normal noise.
    - torch_full: `torch.nn.functional.scaled_dot_product_attention`, causal.
    - kmeans_attention: `routing_transformer.KmeansAttention`, causal, with length / window clusters
      and this window. With the gradient it is in training, where each call computes new means of
      the clusters, and moves them after the gradient as its models do. Its first call of all
      initialises them. "_shared" has queries for keys.
    - fast_transformers: `ClusteredAttention` of 100 clusters. It is never causal.

    Args:
        kind: a key of `ATTENTION`.
        direction: `"forward"`, or `"forward_backward"` with the gradients of query, key and value.
        length: positions in the sequence.
        heads: number of heads.
        depth: of queries, keys and values.
        window: members of a cluster; there are length / window clusters.

    Returns:
        A function without arguments. It returns the output, then the gradients, once they are
        computed.
    """
    import torch

    backward = direction == "forward_backward"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    query, key, value, upstream = (
        torch.randn(1, heads, length, depth, device=device) for _ in range(4)
    )
    # Where queries are the keys, there is no gradient of keys beside theirs.
    inputs = [query, value] if kind.endswith("_shared") else [query, key, value]
    for tensor in inputs:
        tensor.requires_grad_(backward)
    attention, update = _ATTENTION[kind](length, heads, depth, window, backward, device)

    def run():
        with torch.set_grad_enabled(backward):
            output = attention(query, query if kind.endswith("_shared") else key, value)
        results = [output]
        if backward:
            results += torch.autograd.grad(output, inputs, upstream)
            update()
        # Waits for the device: a value that is read must have been computed.
        results[-1].flatten()[0].item()
        return results

    return run


def _torch_full(length, heads, depth, window, backward, device):
    from torch.nn.functional import scaled_dot_product_attention

    def attention(query, key, value):
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    return attention, lambda: None


def _kmeans_attention(length, heads, depth, window, backward, device, shared_qk=False):
    from routing_transformer import KmeansAttention

    layer = KmeansAttention(
        num_clusters=length // window,
        window_size=window,
        num_heads=heads,
        head_dim=depth,
        causal=True,
        shared_qk=shared_qk,
    )
    layer.to(device).train(backward)
    return lambda query, key, value: layer(query, key, value)[0], layer.kmeans.update


def _kmeans_attention_shared(*arguments):
    return _kmeans_attention(*arguments, shared_qk=True)


def _fast_transformers(length, heads, depth, window, backward, device):
    import torch
    from fast_transformers.attention import ClusteredAttention
    from fast_transformers.masking import FullMask, LengthMask

    layer = ClusteredAttention(CLUSTERS_OF_FAST_TRANSFORMERS).to(device).train(backward)
    everything = FullMask(length, device=device)
    lengths = LengthMask(torch.tensor([length], device=device), max_len=length, device=device)

    def attention(query, key, value):
        # It has the heads behind the positions.
        inputs = [x.transpose(1, 2).contiguous() for x in (query, key, value)]
        return layer(*inputs, everything, lengths, lengths).transpose(1, 2)

    return attention, lambda: None


_ATTENTION = {
    "torch_full": _torch_full,
    "kmeans_attention": _kmeans_attention,
    "kmeans_attention_shared": _kmeans_attention_shared,
    "fast_transformers": _fast_transformers,
}
