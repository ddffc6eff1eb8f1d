"""Attention of other packages, in PyTorch, used as their documentation says.

The packages are in the extra `rivals`.
"""

import functools
from importlib import metadata
from importlib.util import find_spec

from rt_keras.benchmarks.runs import say

# The modules that each rival needs; the last one belongs to its package.
ATTENTION = {
    "torch_full": ("torch",),
    "kmeans_attention": ("torch", "routing_transformer"),
    "kmeans_attention_shared": ("torch", "routing_transformer"),
}
PACKAGES = {"torch": "torch", "routing_transformer": "routing-transformer"}


def package(imports):
    """Returns the name of a rival's package.

    Args:
        imports: tuple of strings, the modules that the rival needs.

    >>> package(ATTENTION["kmeans_attention"])
    'routing-transformer'
    """
    return PACKAGES[imports[-1]]


def choose(wanted):
    """Selects the rivals to measure. Without `wanted`, standard error lists the missing ones.

    Args:
        wanted: list of strings, or None for all installed rivals.

    Returns:
        A dictionary from names to the modules that each rival needs.

    Raises:
        ValueError: if a requested rival is not installed.
    """
    chosen = {}
    for name in dict.fromkeys(ATTENTION if wanted is None else wanted):
        missing = [PACKAGES[module] for module in ATTENTION[name] if find_spec(module) is None]
        line = f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        if not missing:
            chosen[name] = ATTENTION[name]
        elif wanted is None:
            say(f"not installed: {line}")
        else:
            raise ValueError(f"--rivals: {line}")
    return chosen


def versions(rivals):
    """Returns the versions of the rivals' packages.

    Args:
        rivals: dictionary from `choose`.

    Returns:
        A dictionary from packages to versions.
    """
    modules = dict.fromkeys(module for imports in rivals.values() for module in imports)
    return {PACKAGES[module]: metadata.version(PACKAGES[module]) for module in modules}


def prepare(kind, direction, length, heads, depth, window):
    """Makes inputs and a function that runs one rival on them once.

    The batch size is 1. Computations are in float32, on a GPU if PyTorch has one. Inputs are
    Gaussian noise. The rivals:
    - torch_full: `torch.nn.functional.scaled_dot_product_attention`, causal.
    - kmeans_attention: `routing_transformer.KmeansAttention`, causal, with length / window clusters
      and this window. With gradients it is in training mode, as in the models of its package: each
      call computes new cluster means, and the clusters move after the gradients. The first call
      initializes them. "_shared" has shared queries and keys.

    Args:
        kind: string, a key of `ATTENTION`.
        direction: "forward", or "forward_backward" to include the gradients of query, key and
            value.
        length: int, the number of positions.
        heads: int, the number of heads.
        depth: int, the depth of queries, keys and values.
        window: int, the cluster size; there are length / window clusters.

    Returns:
        A function without arguments that returns a list of the output and the gradients, once they
        are computed.
    """
    import torch

    backward = direction == "forward_backward"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    query, key, value, upstream = (
        torch.randn(1, heads, length, depth, device=device) for _ in range(4)
    )
    # If queries and keys are shared, keys have no gradient.
    inputs = [query, value] if kind.endswith("_shared") else [query, key, value]
    for tensor in inputs:
        tensor.requires_grad_(backward)
    attention, layer = _attention(kind, length, heads, depth, window)
    if layer is not None:
        layer.to(device).train(backward)

    def run():
        with torch.set_grad_enabled(backward):
            output = attention(query, query if kind.endswith("_shared") else key, value)
        results = [output]
        if backward:
            results += torch.autograd.grad(output, inputs, upstream)
            if layer is not None:
                layer.kmeans.update()
        # Reading a value waits for the device.
        results[-1].flatten()[0].item()
        return results

    return run


def _attention(kind, length, heads, depth, window):
    """Returns a function of query, key and value, and the layer that it belongs to, if any."""
    if kind == "torch_full":
        from torch.nn.functional import scaled_dot_product_attention

        return functools.partial(scaled_dot_product_attention, is_causal=True), None
    from routing_transformer import KmeansAttention

    layer = KmeansAttention(
        num_clusters=length // window,
        window_size=window,
        num_heads=heads,
        head_dim=depth,
        causal=True,
        shared_qk=kind.endswith("_shared"),
    )
    return lambda query, key, value: layer(query, key, value)[0], layer
