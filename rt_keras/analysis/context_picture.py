"""Draws what a text's past is worth: bits per byte against how much came before."""

from rt_keras.drawing import drawing

# A mean of fewer tokens says more of them than of what came before.
LEAST_TOKENS = 512


def draw(found, path):
    """Draws a line for each model, of the ranges with at least 512 tokens, or of all if none has.

    Args:
        found: dictionary from what a model is called to what
            `rt_keras.training.carried.bits_by_position` returned for it.
        path: string or `Path`, the file to write; its ending (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    with drawing(path, figsize=(7, 4.5)) as figure:
        axis = figure.subplots()
        for name, ranges in found.items():
            ranges = [x for x in ranges if x["tokens"] >= LEAST_TOKENS] or ranges
            # The geometric middle of each range.
            middles = [(x["first"] * (x["last"] + 1)) ** 0.5 for x in ranges]
            axis.plot(middles, [x["bits_per_byte"] for x in ranges], marker="o", label=name)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="tokens before", ylabel="bits per byte")
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
