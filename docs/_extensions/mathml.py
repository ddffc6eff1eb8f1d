"""Formulas as MathML, which browsers draw without a script or a font of the page."""

from docutils import nodes
from latex2mathml.converter import convert


def write_inline(writer, node):
    """Writes a formula inside a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_block(writer, node):
    """Writes a formula on lines of its own."""
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Registers the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
