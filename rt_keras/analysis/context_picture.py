"""Draws bits per byte by number of previous tokens."""

from rt_keras.analysis.drawing import drawing

# Means of fewer tokens are too noisy.
LEAST_TOKENS = 512


def draw(ranges_by_model, path):
    """Draws a line for each model.

    A line has the ranges with at least 512 tokens, or all ranges if none has as many.

    Args:
        ranges_by_model: dictionary from names of models to the lists that
            `rt_keras.training.stateful_scores.bits_by_position` returned for them.
        path: string or `Path`, the file to write. Its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    with drawing(path, figsize=(7, 4.5)) as figure:
        axis = figure.subplots()
        for name, ranges in ranges_by_model.items():
            ranges = [x for x in ranges if x["tokens"] >= LEAST_TOKENS] or ranges
            # The geometric middle of each range.
            middles = [(x["first"] * (x["last"] + 1)) ** 0.5 for x in ranges]
            axis.plot(middles, [x["bits_per_byte"] for x in ranges], marker="o", label=name)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="tokens before", ylabel="bits per byte")
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
