"""The divergence between the heads of a layer, as in section 6 of the paper."""

import collections
import math

import numpy as np

from rt_keras.data import progress
from rt_keras.data.tables import table
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.head_divergence import head_divergences, pairs_by_kind


def measure(model, batches, verbose=0):
    """Computes the Jensen-Shannon divergence between the heads of each layer, by kinds of heads.

    See `rt_keras.layers.head_divergence.jensen_shannon` for the equation. All pairs of heads are
    compared, over all keys, at every position where both heads attend to a key.

    Args:
        model: any model of `rt_keras.models`.
        batches: list of inputs of the model, such as one sequence each.
        verbose: int, 1 for a progress bar. Defaults to 0.

    Returns:
        A dictionary of
        - `divergences`: list of dictionaries, one for each layer and pair of kinds. Each has
          `layer`, `kinds` (two class names of head groups), `pairs` (number of pairs of heads),
          `positions` (number of positions compared, over all pairs and batches), and `mean` and
          `std` over these positions, with the natural logarithm;
        - `upper_bound`: ln 2.

    Raises:
        ValueError: if no layer has two heads.

    Source: Roy et al. 2021, section 6.
    """
    values_by_kinds = collections.defaultdict(list)
    for inputs in progress.track(batches, "comparing heads", len(batches), verbose):
        for call in attention_calls(model, inputs):
            for kinds, pairs in pairs_by_kind(call.kinds).items():
                values = head_divergences(call, pairs)
                values_by_kinds[call.name, kinds, len(pairs)].append(values)
    if not values_by_kinds:
        raise ValueError("model must have a layer with two heads to compare. It has none.")
    divergences = [
        {"layer": layer, "kinds": list(kinds), "pairs": pairs, **_moments(values)}
        for (layer, kinds, pairs), values in values_by_kinds.items()
    ]
    return {"divergences": divergences, "upper_bound": math.log(2)}


def _moments(parts):
    values = np.concatenate([part[~np.isnan(part)] for part in parts]).astype(float)
    if not values.size:
        return {"positions": 0, "mean": None, "std": None}
    return {"positions": values.size, "mean": float(values.mean()), "std": float(values.std())}


def report(figures):
    """Formats the figures of `measure` as lines of text.

    Args:
        figures: the dictionary that `measure` returned.

    Returns:
        A string.

    >>> row = {"layer": "block_0/attention", "kinds": ["LocalHeads", "RoutingHeads"]}
    >>> row |= {"pairs": 1, "positions": 20, "mean": 0.5, "std": 0.1}
    >>> print(report({"divergences": [row], "upper_bound": math.log(2)}))
    Jensen-Shannon divergence between the attention of two heads, mean ± standard deviation over
    positions: 0 for equal weights, ln 2 = 0.6931 for disjoint keys
    <BLANKLINE>
                         LocalHeads
    layer              RoutingHeads
    block_0/attention 0.5000±0.1000
    """
    cells = collections.defaultdict(dict)
    for row in figures["divergences"]:
        cells[row["layer"]]["\n".join(row["kinds"])] = _cell(row)
    kinds = sorted({kinds for row in cells.values() for kinds in row})
    rows = [(layer, *map(row.get, kinds)) for layer, row in cells.items()]
    return (
        "Jensen-Shannon divergence between the attention of two heads, mean ± standard deviation "
        "over\npositions: 0 for equal weights, "
        f"ln 2 = {figures['upper_bound']:.4f} for disjoint keys\n\n"
        f"{table({'layer': '', **dict.fromkeys(kinds, '>')}, rows)}"
    )


def _cell(row):
    return None if row["mean"] is None else f"{row['mean']:.4f}±{row['std']:.4f}"
